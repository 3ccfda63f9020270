"""The manager thread: poll, dispatch, collect reports, apply flow. It alone touches the consumer (invariants 4-7)."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from statehold.balancer.assignment import Assignment, Report, Track, Worker
from statehold.balancer.flow_control import Flow
from statehold.balancer.join_diagnosis import Joining
from statehold.config.settings import Settings
from statehold.errors import RetentionGap, StateholdError
from statehold.ports import Clock, GroupConsumer, Membership, Trouble
from statehold.record import Message
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics

_HELD = 0.005
_COMPLAIN_EVERY = 60.0
#: how often the threads of the partitions are looked after
_ATTEND = 0.05


class Manager:
    """`run` is the thread's body; the other public methods may be called by any thread."""

    def __init__(
        self,
        consumer: GroupConsumer,
        workers: Callable[[int, Callable[[Report], None]], Worker],
        settings: Settings,
        meters: ServiceMetrics,
        log: Log,
        clock: Clock,
        joining: Joining | None = None,
    ) -> None:
        self._consumer, self._workers, self._settings = consumer, workers, settings
        self._meters, self._log, self._clock = meters, log, clock
        self._assignment = Assignment()
        #: of partitions that went away while their threads were busy
        self._leaving: list[Worker] = []
        self._attend_at = 0.0
        self._flow = Flow(settings.flow.high, settings.flow.low)
        self._reports: queue.SimpleQueue[tuple[Track, Report]] = queue.SimpleQueue()
        self._retries: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failures: queue.SimpleQueue[Callable[[int, int], BaseException]] = queue.SimpleQueue()
        self._complaints: dict[str, float] = {}
        self._stopping = threading.Event()
        self._stop_within = settings.group.drain_seconds
        self._leave = settings.group.leave_on_stop
        self._joining = joining
        #: monotonic time at which a stop must be over
        self._stop_by = math.inf
        self._stale = False
        #: a callback has run: the client has stopped fetching meanwhile, for every partition
        self._disturbed = False
        self._exits_on_failure = settings.failure.on_partition_failure == "exit"
        #: monotonic time of the loop's last turn
        self.turned: float | None = None
        #: the newest word on the group; workers read it
        self.membership = Membership(0, None, "")
        #: the first failure that ends the service, with failure.on_partition_failure = "exit"
        self.failure: BaseException | None = None

    # Any thread

    def stop(self, within: float, *, leave: bool = False) -> None:
        """Drain every partition, leave the group, end the thread; a static member stays in it but with `leave`."""
        self._leave = self._leave or leave
        self._stop_within = within
        self._stopping.set()

    def retry(self, partition: int | None = None) -> None:
        """Try a failed partition again, or all of them."""
        self._retries.put(partition)

    def fail(self, cause: Callable[[int, int], BaseException]) -> None:
        """Fail every live partition; `cause` is asked with its number and its next offset."""
        self._failures.put(cause)

    def look_again(self) -> None:
        """Fetch the group metadata anew, with the next turn."""
        self._stale = True

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions that the group has given to this process."""
        return frozenset(self._assignment.tracks.copy())

    @property
    def waiting(self) -> str | None:
        """Why there is no partition here, as far as the group has told."""
        return self._joining.text if self._joining is not None else None

    @property
    def standby(self) -> bool:
        """Whether every partition has a living owner elsewhere."""
        return self._joining is not None and self._joining.standby

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping.is_set()

    def status(self) -> list[dict[str, Any]]:
        return [track.worker.status() for _, track in sorted(self._assignment.tracks.copy().items())]

    # The manager thread

    def run(self) -> None:
        """Until `stop`; leaves the group in any case.

        :raises KafkaTrouble: the consumer cannot go on.
        """
        try:
            self._consumer.subscribe(self)
            self._log.info("subscribed")
            while not self._stopping.is_set():
                self._turn()
            self._drain_all()
        finally:
            for worker in self._assignment.workers():
                worker.lose()
            within = max(1.0, min(self._stop_within, self._stop_by - self._clock()))
            if not self._consumer.close(within, leave=self._leave):
                self._log.warning("stopped", cause="the group coordinator did not answer; it will notice by itself")

    def _turn(self) -> None:
        """Poll, dispatch, collect, apply flow."""
        decision = self._flow.decide(self._assignment.depths(), self._assignment.paused(), self._clock())
        self._apply(decision.pause, decision.resume)
        if decision.poll:
            messages, troubles = self._consumer.consume(self._settings.flow.batch, self._settings.flow.poll_timeout)
            self._dispatch(messages)
            self._note_troubles(troubles)
            if self._disturbed:
                self._disturbed = False
                self._consumer.wake(self._assignment.flowing())
        else:
            self._stopping.wait(_HELD)
        self._attend()
        self._collect()
        if self._stale:
            self._refresh_membership()
        if self._joining is not None:
            self._joining.turn(empty=not self._assignment.tracks, member=lambda: self._consumer.membership()[1])
        self.turned = self._clock()

    def _attend(self) -> None:
        """What the partitions' threads cannot see of themselves: slow and stuck handlers."""
        now = self._clock()
        if now < self._attend_at:
            return
        self._attend_at = now + _ATTEND
        self._leaving = [worker for worker in self._leaving if not worker.closed.is_set()]
        for worker in (*self._assignment.workers(), *self._leaving):
            worker.attend(now)

    def _await_closed(self, worker: Worker, deadline: float) -> bool:
        """False: it is not closed by the deadline, or its handler is stuck."""
        while not worker.closed.wait(max(0.0, min(_ATTEND, deadline - self._clock()))):
            if worker.stuck or self._clock() >= deadline:
                self._leaving.append(worker)
                return False
            self._attend()
        return True

    def _dispatch(self, messages: Sequence[Message]) -> None:
        """What belongs to no live stream is dropped: it comes again after the seek (invariant 7)."""
        if not messages:
            return
        partition_of = type(messages[0]).partition
        several = len(set(map(partition_of, messages))) > 1
        groups = groupby(messages, partition_of) if several else ((messages[0].partition(), messages),)
        for partition, group in groups:
            track = self._assignment.live(partition if partition is not None else -1)
            if track is not None:
                track.hand_over(list(group) if several else messages)

    def _apply(self, pause: frozenset[int], resume: frozenset[int]) -> None:
        for partition in pause:
            self._meters.service.inc(metrics.PAUSES, 1, str(partition))
        for partitions, paused in ((pause, True), (resume, False)):
            for partition in partitions:
                self._assignment.tracks[partition].paused = paused
        self._consumer.pause(sorted(pause))
        self._consumer.resume(sorted(resume))

    def _complain(self, cause: str) -> None:
        """A complaint that the client repeats every second or two is told of once a minute."""
        now = self._clock()
        self._complaints = {told: at for told, at in self._complaints.items() if now - at < _COMPLAIN_EVERY}
        if cause not in self._complaints:
            self._complaints[cause] = now
            self._log.warning("kafka_retry", doing="consume", cause=cause)

    def _note_troubles(self, troubles: Sequence[Trouble]) -> None:
        for partition, error, out_of_range, topic in troubles:
            track = self._assignment.tracks.get(partition)
            # What is not live will seek before it reads: where the consumer stands now is not its position.
            if not out_of_range or track is None or not track.live:
                self._complain(str(error))
                continue
            track.worker.fail(
                RetentionGap(
                    f"the position that comes next is not in the topic any more ({error}). Nothing was skipped. "
                    f"Bring the records back, or stop the service: `statehold repair accept-gap MODULE:SERVICE --why "
                    f"... --dry-run` shows where it can go on",
                    topic=topic,
                    partition=partition,
                    position=track.next,
                )
            )

    def _collect(self) -> None:
        while not self._retries.empty():
            chosen = self._retries.get()
            for partition, track in self._assignment.tracks.items():
                if chosen in (None, partition):
                    track.worker.retry()
        while not self._failures.empty():
            cause = self._failures.get()
            for partition, track in self._assignment.tracks.items():
                if track.live:
                    track.worker.fail(cause(partition, track.next))
        while not self._reports.empty():
            self._note(*self._reports.get())

    def _note(self, track: Track, report: Report) -> None:
        if report.kind == "stale":
            self._stale = True
            return
        if report.kind in ("died", "stuck", "stop") or (report.kind == "failed" and self._exits_on_failure):
            self.failure = self.failure or report.cause
            self._stopping.set()
        if self._assignment.tracks.get(report.partition) is not track or self._stopping.is_set():
            return
        if report.kind == "live":
            track.go_live(report.position, report.stream)
            # In this order: after a seek while paused nothing would come for a second (measured: 1.00 s, against 3 ms).
            # What is fetched in between is handed over too, and dropped by position.
            self._consumer.resume([report.partition])
            self._consumer.seek(report.partition, report.position)
        elif track.live:
            track.live = False
            self._consumer.pause([report.partition])

    def _refresh_membership(self) -> None:
        metadata, member = self._consumer.membership()
        if member != self.membership.member_id:
            self._log.info("member", member_id=member)
        self.membership = Membership(self.membership.version + 1, metadata, member)
        self._stale = False

    def _drain_all(self) -> None:
        """Polls on while the partitions drain, so that the group stays what it is until they have committed."""
        self._log.info("stopping", within=self._stop_within)
        deadline = self._stop_by = self._clock() + self._stop_within
        self._consumer.pause(list(self._assignment.tracks))
        self._refresh_membership()
        for worker in self._assignment.workers():
            worker.revoke(deadline, final=True)
        workers = list(self._assignment.workers())
        while self._clock() < deadline and not all(worker.closed.is_set() or worker.stuck for worker in workers):
            self._consumer.consume(1, self._settings.flow.poll_timeout)
            self._attend()
            self.turned = self._clock()
            self._collect()
            if self._stale:
                self._refresh_membership()

    # Rebalance callbacks: on the manager thread, inside consume; they must not raise

    def on_assign(self, partitions: Sequence[int]) -> None:
        self._meters.service.inc(metrics.REBALANCES, 1, "assigned")
        self._log.info("assigned", partitions=sorted(partitions), had=sorted(self._assignment.tracks))
        self._stale = True
        self._disturbed = True
        self._consumer.assign(partitions)
        # An assignment resets what was paused before it (pitfall P18, invariant 6).
        self._consumer.pause(self._assignment.silent())
        if self._stopping.is_set():
            return
        # What brings us here may have waited for this thread: it is as old as the turn before, at most (rule T8).
        since = self.turned if self.turned is not None else self._clock()
        for partition in partitions:
            self._assignment.add(partition, self._new_track(partition)).worker.start(since)

    def _new_track(self, partition: int) -> Track:
        """A worker's reports carry its track: those of an earlier assignment are told apart."""
        track: Track = Track(self._workers(partition, lambda report: self._reports.put((track, report))))
        return track

    def on_revoke(self, partitions: Sequence[int]) -> None:
        """Waits for the drains, within their budget, and for nothing else (rule T9)."""
        self._meters.service.inc(metrics.REBALANCES, 1, "revoked")
        deadline = min(self._clock() + self._settings.group.drain_seconds, self._stop_by)
        self._log.info("revoked", partitions=sorted(partitions))
        try:
            self._refresh_membership()
        except StateholdError as error:
            self._log.warning("kafka_retry", doing="fetch the group metadata", cause=str(error))
        workers = self._assignment.remove(partitions)
        for worker in workers:
            worker.revoke(deadline, final=False)
        for worker in workers:
            if not self._await_closed(worker, deadline):
                worker.lose()
        self._consumer.unassign(partitions)
        self._stale = self._disturbed = True

    def on_lost(self, partitions: Sequence[int]) -> None:
        self._meters.service.inc(metrics.REBALANCES, 1, "lost")
        self._log.warning("lost", partitions=sorted(partitions))
        for worker in self._assignment.remove(partitions):
            worker.lose()
            self._leaving.append(worker)
        self._consumer.unassign(partitions)
        self._stale = True
