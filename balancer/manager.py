"""The manager thread: polls, hands records over, collects reports, applies flow control.

No other thread uses the consumer.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from statehold.api.record import Message
from statehold.balancer.assignment import Assignment, Track, Worker
from statehold.balancer.flow_control import FlowControl
from statehold.balancer.join_diagnosis import JoinDiagnosis
from statehold.balancer.unassigned_partitions import UnassignedPartitions
from statehold.common.threads import SYSTEM, Threads
from statehold.config.settings import Settings
from statehold.errors import RetentionGap, StateholdError, TopicReplaced
from statehold.ports import Clock, ConsumerTrouble, GroupConsumer, Membership, WorkerReport
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics

#: Wait in seconds of a turn without a poll: shorter than a handler needs for `flow.low` records.
_NO_POLL = 0.003
#: Part of `commit.interval` that a poll may wait for a batch to fill, because a record waits that long before its turn.
_POLL_PART = 0.2
#: Seconds without a record until polls wait longer, because many short polls of an idle service take processor time.
_CALM_AFTER = 1.0
_CALM_POLL = 0.1
#: A repeated client error is logged once in this many seconds.
_SAME_ERROR_EVERY = 60.0
#: Seconds between two checks of the partitions' handlers, and what each partition adds to them.
_ATTEND = 0.05
_ATTEND_EACH = 0.001


class Manager:
    """`run` is the thread's body. Any thread may call the other public methods."""

    def __init__(
        self,
        consumer: GroupConsumer,
        workers: Callable[[int, Callable[[WorkerReport], None]], Worker],
        settings: Settings,
        meters: ServiceMetrics,
        log: Log,
        clock: Clock,
        joining: JoinDiagnosis | None = None,
        threads: Threads = SYSTEM,
        unassigned: UnassignedPartitions | None = None,
        *,
        asked: bool = False,
    ) -> None:
        """`unassigned`: for a static member of the classic protocol. `asked`: writers of records wait for answers, so
        the first record ends a poll.
        """
        self._consumer, self._workers, self._settings = consumer, workers, settings
        self._meters, self._log, self._clock = meters, log, clock
        self._assignment = Assignment()
        #: Workers of revoked partitions whose threads were still busy.
        self._leaving: list[Worker] = []
        self._attend_at = 0.0
        #: Monotonic time of the last poll that returned a record.
        self._busy = -math.inf
        self._flow = FlowControl(settings.flow.high, settings.flow.low)
        self._poll_timeout = min(settings.flow.poll_timeout, _POLL_PART * settings.commit.interval)
        self._reports: queue.SimpleQueue[tuple[Track, WorkerReport]] = queue.SimpleQueue()
        self._retries: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failures: queue.SimpleQueue[Callable[[int, int], BaseException]] = queue.SimpleQueue()
        self._logged_errors: dict[str, float] = {}
        #: The input that the consumer reads from.
        self._input = consumer.input
        self._stopping = threads.event()
        self._stop_within = settings.group.drain_seconds
        self._leave = settings.group.leave_on_stop
        self._joining, self._unassigned, self._asked = joining, unassigned, asked
        #: Monotonic time by which a stop must have finished.
        self._stop_by = math.inf
        #: True if the group metadata must be fetched again.
        self._stale = False
        #: True after a rebalance callback, because the client has stopped fetching for every partition.
        self._rebalanced = False
        self._exits_on_failure = settings.failure.on_partition_failure == "exit"
        #: Monotonic time of the loop's last turn.
        self.turned: float | None = None
        #: The newest group metadata; workers read it.
        self.membership = Membership(0, None, "")
        #: The failure that ended the service, with failure.on_partition_failure = "exit".
        self.failure: BaseException | None = None

    # Any thread

    def stop(self, within: float, *, leave: bool = False) -> None:
        """Drain every partition within `within` seconds, leave the group and end the thread.

        A static member leaves the group only with `leave`.
        """
        self._leave = self._leave or leave
        self._stop_within = within
        self._stopping.set()

    def retry(self, partition: int | None = None) -> None:
        """Restart one failed partition, or all of them."""
        self._retries.put(partition)

    def fail(self, cause: Callable[[int, int], BaseException]) -> None:
        """Fail every live partition with the error that `cause(partition, next_offset)` returns."""
        self._failures.put(cause)

    def request_membership_refresh(self) -> None:
        """Fetch the group metadata again on the next turn."""
        self._stale = True

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions that the group has assigned to this process."""
        return frozenset(self._assignment.tracks.copy())

    @property
    def waiting(self) -> str | None:
        """Why this process has no partition; None if it has one or the reason is unknown."""
        return self._joining.text if self._joining is not None else None

    @property
    def idle(self) -> bool:
        """True if this member is idle: other members own every partition."""
        return self._joining is not None and self._joining.idle

    @property
    def stopping(self) -> bool:
        """True after `stop`, or after a failure that ends the service."""
        return self._stopping.is_set()

    def status(self) -> list[dict[str, Any]]:
        tracks = sorted(self._assignment.tracks.copy().items())
        return [msgspec.to_builtins(track.worker.status()) for _, track in tracks]

    # The manager thread

    def run(self) -> None:
        """Run until `stop`. Leaves the group in every case.

        :raises KafkaTrouble: the consumer cannot continue.
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
                self._log.warning(
                    "stopping",
                    cause="the group coordinator did not answer: it removes this member when the session ends",
                )

    def _turn(self) -> None:
        depths, now = self._assignment.depths(), self._clock()
        paused, empty = self._assignment.paused(), self._assignment.has_empty(depths)
        decision = self._flow.decide(depths, paused, now, empty=empty)
        self._apply(decision.pause, decision.resume)
        if decision.poll:
            calm = now - self._busy >= _CALM_AFTER and self._assignment.is_settled()
            # While calm, the first record ends the poll, so the longer wait adds no latency.
            messages, troubles = self._poll(calm=calm)
            if messages:
                self._busy = now
            if self._consumer.input is not self._input:
                self._require_same_input()
            self._dispatch(messages)
            self._note_troubles(troubles)
            if self._rebalanced:
                self._rebalanced = False
                self._consumer.wake(self._assignment.delivering())
        else:
            self._stopping.wait(_NO_POLL)
        self._attend()
        self._collect()
        if self._stale:
            self._refresh_membership()
        if self._joining is not None:
            self._joining.turn(empty=not self._assignment.tracks, member=lambda: self._consumer.membership()[1])
        if self._unassigned is not None and self._unassigned.found():
            self._consumer.rejoin()
        self.turned = self._clock()

    def _poll(self, *, calm: bool) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        """Wait for the first record if the service is calm or asked, for a batch to fill otherwise."""
        batch, timeout = self._settings.flow.batch, _CALM_POLL if calm else self._poll_timeout
        found, troubles = self._consumer.consume(1 if calm or self._asked else batch, timeout)
        if not self._asked or not found:
            return found, troubles
        more, others = self._consumer.consume(batch, 0.0)  # what has come with it shares its transaction
        return [*found, *more], [*troubles, *others]

    def _attend(self) -> None:
        """Watch for slow and stuck handlers, because a worker thread cannot watch its own call."""
        now = self._clock()
        if now < self._attend_at:
            return
        self._attend_at = now + max(_ATTEND, _ATTEND_EACH * len(self._assignment.tracks))
        self._leaving = [worker for worker in self._leaving if not worker.closed.is_set()]
        for worker in (*self._assignment.workers(), *self._leaving):
            worker.attend(now)

    def _await_closed(self, worker: Worker, deadline: float) -> bool:
        """Return False if the worker has not closed by the deadline, or if its handler is stuck."""
        while not worker.closed.wait(max(0.0, min(_ATTEND, deadline - self._clock()))):
            if worker.stuck or self._clock() >= deadline:
                self._leaving.append(worker)
                return False
            self._attend()
        return True

    def _dispatch(self, messages: Sequence[Message]) -> None:
        """Hand records to live partitions. The others are dropped, and read again after the seek (rule A2)."""
        if not messages:
            return
        partition_of = type(messages[0]).partition
        several = len(set(map(partition_of, messages))) > 1
        groups = groupby(messages, partition_of) if several else ((messages[0].partition(), messages),)
        for partition, group in groups:
            if partition is not None:
                self._assignment.hand_over(partition, list(group) if several else messages)

    def _require_same_input(self) -> None:
        """Fail the live partitions whose offsets are of another input than the consumer reads from now."""
        self._input = now = self._consumer.input
        for partition, track in self._assignment.of_another_topic(now.id).items():
            track.live = False  # so that no record of the new topic is handed over
            self._consumer.pause([partition])
            track.worker.fail(
                TopicReplaced(
                    f"read the input: it was deleted and created again (id {track.topic_id} before, {now.id} now). No "
                    f"record of the new topic was processed. Next: restore the old topic; or stop the service and run "
                    f"`statehold repair accept-gap MODULE:SERVICE --why TEXT --dry-run`, which shows where it would "
                    f"continue",
                    topic=now.name,
                    partition=partition,
                    position=track.next,
                )
            )

    def _apply(self, pause: frozenset[int], resume: frozenset[int]) -> None:
        for partition in pause:
            self._meters.service.inc(metrics.PAUSES, 1, str(partition))
        for partitions, paused in ((pause, True), (resume, False)):
            for partition in partitions:
                self._assignment.tracks[partition].paused = paused
        self._consumer.pause(sorted(pause))
        self._consumer.resume(sorted(resume))

    def _log_error(self, cause: str) -> None:
        """Log a client error once a minute, because the client repeats it every second or two."""
        now = self._clock()
        self._logged_errors = {text: at for text, at in self._logged_errors.items() if now - at < _SAME_ERROR_EVERY}
        if cause not in self._logged_errors:
            self._logged_errors[cause] = now
            self._log.warning("kafka_retry", doing="consume", cause=cause)

    def _note_troubles(self, troubles: Sequence[ConsumerTrouble]) -> None:
        for partition, error, out_of_range, topic in troubles:
            track = self._assignment.tracks.get(partition)
            # A partition that is not live seeks before it reads, so the consumer's current offset does not matter.
            if not out_of_range or track is None or not track.live:
                self._log_error(str(error))
                continue
            track.worker.fail(
                RetentionGap(
                    f"read the next record: retention has deleted its offset ({error}). No record was skipped. Next: "
                    f"restore the records; or stop the service and run `statehold repair accept-gap MODULE:SERVICE "
                    f"--why TEXT --dry-run`, which shows the offset it would continue from",
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

    def _note(self, track: Track, report: WorkerReport) -> None:
        if report.kind == "stale":
            self._stale = True
            return
        if report.kind in ("died", "stuck", "stop") or (report.kind == "failed" and self._exits_on_failure):
            self.failure = self.failure or report.cause
            self._stopping.set()
        if self._assignment.tracks.get(report.partition) is not track or self._stopping.is_set():
            return
        if report.kind == "live":
            track.go_live(report)
            if track.reads_another(self._input.id):
                self._require_same_input()
                return
            if track.reads_itself:
                return
            # Resume before seek: after a seek while paused the client delivers nothing for 1.00 s, against 3 ms.
            # The worker drops the records fetched between the two calls, by their offsets.
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
        """Poll while the partitions drain, so that the group stays stable until they have committed."""
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

    # Rebalance callbacks run on the manager thread, inside `consume`. They must not raise.

    def on_assign(self, partitions: Sequence[int]) -> None:
        self._meters.service.inc(metrics.REBALANCES, 1, "assigned")
        self._log.info("assigned", partitions=sorted(partitions), had=sorted(self._assignment.tracks))
        self._stale = True
        self._rebalanced = True
        if self._unassigned is not None:
            self._unassigned.begin()
        for worker in self._assignment.remove(partitions):  # assigned twice: two workers would fence each other
            worker.lose()
            self._leaving.append(worker)
        self._consumer.assign(partitions)
        # Pause again, because `assign` resumes every partition (pitfall P18, rule A2).
        self._consumer.pause(self._assignment.not_delivering())
        if self._stopping.is_set():
            return
        # The assignment may have waited for this thread since the previous turn, so that turn's time counts (rule T8).
        since = self.turned if self.turned is not None else self._clock()
        for partition in partitions:
            self._assignment.add(partition, self._new_track(partition)).worker.start(since)

    def _new_track(self, partition: int) -> Track:
        """Create a worker whose reports carry its track, so that reports of an earlier assignment are ignored."""
        track: Track = Track(self._workers(partition, lambda report: self._reports.put((track, report))))
        return track

    def on_revoke(self, partitions: Sequence[int]) -> None:
        """Wait for the drains within `group.drain_seconds`, and for nothing else (rule T9)."""
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
        self._stale = self._rebalanced = True

    def on_lost(self, partitions: Sequence[int]) -> None:
        self._meters.service.inc(metrics.REBALANCES, 1, "lost")
        self._log.warning("lost", partitions=sorted(partitions))
        for worker in self._assignment.remove(partitions):
            worker.lose()
            self._leaving.append(worker)
        self._consumer.unassign(partitions)
        self._stale = True
