"""One partition's thread: walks the lifecycle, one method per phase, and tells the manager where it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from statehold.errors import (
    AccessLost,
    Fenced,
    MemoryShort,
    OffsetDisagrees,
    OwnershipError,
    RegistryUnreachable,
    RestoreTimeout,
    SinkUnreachable,
    of_thread,
)
from statehold.ports import Cancelled, Transactions
from statehold.record import Message
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import Mark
from statehold.telemetry import metrics
from statehold.worker.common.context import Report, Tools
from statehold.worker.common.errors import ProducerDropped
from statehold.worker.common.lifecycle import Event, Lifecycle, Phase
from statehold.worker.common.mailbox import Batch, Mailbox
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.reporting import tell_failed, tell_restored
from statehold.worker.common.signals import Signals
from statehold.worker.common.traceback_gc import clear_frames
from statehold.worker.followers.queries import Committed
from statehold.worker.loop import Live
from statehold.worker.recovery.recovery import Opening, Recovered
from statehold.worker.recovery.replay import Replaying
from statehold.worker.status import shown
from statehold.worker.transaction.transaction import Committer
from statehold.worker.watchdog import Attendant

#: a fenced partition asks its group whether it is still the owner, this often at most (rule T8)
_CONFIRM_EVERY: Final = 1.0
#: what the brokers themselves may mend is begun again by itself: an outage may be longer than restore.deadline, and a
#: leader that was replaced and does not know it tells an old end of its log
_AGAIN_AFTER: Final[dict[type[BaseException], float]] = {
    RestoreTimeout: 30.0,
    RegistryUnreachable: 30.0,
    SinkUnreachable: 30.0,
    OffsetDisagrees: 60.0,
    MemoryShort: 60.0,  # others may have gone meanwhile
    AccessLost: 30.0,
}


class PartitionWorker:
    """Made by the manager for one assignment of one partition, and used up with it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.partition = tools.place.partition
        self.mailbox = Mailbox()
        self.closed = threading.Event()
        self._signals = Signals()
        self._opening = Opening(tools, self._signals)
        self._life = Lifecycle()
        self._since = tools.wall()
        self._timings: dict[str, float] = {}
        self._producer: Transactions | None = None
        self._opened: Recovered | None = None
        self._live: Live | None = None
        self._ownership = Ownership(tools, self._signals)
        self._attendant = Attendant(tools, self._signals)
        self._phases: dict[Phase, Callable[[], None]] = {
            Phase.FENCING: self._fence,
            Phase.RESTORING: self._restore,
            Phase.REPLAYING: self._replay,
            Phase.LIVE: self._work,
            Phase.DRAINING: self._drain,
            Phase.ABORTING: self._abort,
            Phase.FAILED: self._wait_for_retry,
        }
        self._thread = threading.Thread(target=self._run, name=f"partition-{self.partition}", daemon=True)

    # The manager's side; none of these blocks

    def start(self, since: float) -> None:
        """`since`: monotonic time at which the poll began that brought the assignment."""
        self._ownership.assigned(since)
        self._thread.start()

    @property
    def depth(self) -> int:
        return self.mailbox.depth

    def offer(self, stream: int, previous: int, messages: Sequence[Message]) -> None:
        self.mailbox.put(Batch(stream, previous, messages))

    def revoke(self, deadline: float, *, final: bool) -> None:
        """Commit what is processed until `deadline` (monotonic seconds), then close."""
        self._signals.revoke(deadline, final=final)
        self.mailbox.signal()

    def lose(self) -> None:
        """Close without committing anything."""
        self._signals.lose()
        self.mailbox.signal()

    def fail(self, cause: BaseException) -> None:
        """What the consumer saw makes going on impossible."""
        self._signals.fail(cause)
        self.mailbox.signal()

    def retry(self) -> None:
        """Begin again with a fence, if the partition has failed; otherwise do nothing."""
        if self._life.phase is Phase.FAILED:
            self._signals.retry()
            self.mailbox.signal()

    def attend(self, now: float) -> None:
        """The manager looks after the thread, many times a second; see `statehold.worker.watchdog`."""
        self._attendant.attend(now)

    @property
    def stuck(self) -> bool:
        """Its thread is inside the handler and was given up: waiting for it is of no use."""
        return self._attendant.failure is not None

    def status(self) -> dict[str, Any]:
        """Phase, position and cause, for people; any thread."""
        life, live = self._life, self._live
        mark = live.committer.mark if live is not None else None
        if (stuck := self._attendant.failure) is not None:
            life = Lifecycle(Phase.FAILED, stuck)
        return {
            "partition": self.partition,
            "phase": life.phase.value,
            "position": mark.positions[self._tools.place.input] if mark else None,
            "transaction": mark.n if mark else None,
            "mailbox": self.mailbox.depth,
            "cause": str(life.cause) if life.cause else None,
            # its class, which has a section in docs/runbook/errors.md
            "error": type(life.cause).__name__ if life.cause else None,
            # who has it stand still
            "paused": mark.paused.issuer if mark and mark.paused else None,
            # how far the restore or the replay has come; None in every other phase
            "restore": self._opening.progress.view(),
            # input offsets that a restore would handle again
            "gap": live.fulls.cost.work.gap if live else None,
            # seconds that a restore would take now
            "restore_predicted": round(live.fulls.cost.seconds, 3) if live else None,
            # since when it is in this phase, and how long its last fence, restore and replay took
            "since": self._since,
            "timings": self._timings.copy(),
            "live": shown(live) if live else None,
            # its thread is inside the handler and was given up
            "stuck": stuck is not None,
        }

    def committed(self) -> Committed | None:
        """Its state for queries, while it is live; any thread."""
        live = self._live
        if live is None or self._life.phase is not Phase.LIVE:
            return None
        return Committed(live.state, lambda: live.committer.mark)

    # The partition's thread

    def _run(self) -> None:
        try:
            self._begin()
            while self._life.phase is not Phase.CLOSED:
                self._step(self._phases[self._life.phase])
        except BaseException as error:  # a thread must not die unseen (invariant 10)
            self._tools.log.error("thread_died", cause=f"{type(error).__name__}: {error}", exc_info=True)
            self._tools.report(Report(self.partition, "died", cause=of_thread(error)))
        finally:
            self._drop()
            self._tools.metrics.forget()
            self.closed.set()
            self._tools.log.info("partition_closed", cause=str(self._life.cause) if self._life.cause else None)
            self._tools.report(Report(self.partition, "closed", cause=self._life.cause))

    def _begin(self) -> None:
        """A retry that came before the thread means nothing: there is no failure yet."""
        event = self._signals.event()
        self._go(event if event in (Event.LOST, Event.REVOKED) else Event.START)

    def _step(self, step: Callable[[], None]) -> None:
        """One phase's work; every way in which it can end is an event."""
        try:
            step()
        except Cancelled:
            self._go(self._signals.event() or Event.LOST)
        except ProducerDropped as dropped:
            self._tools.log.warning("producer_replaced", cause=str(dropped))
            self._go(Event.PRODUCER_DROPPED)
        except Exception as error:  # noqa: BLE001  whatever it is, it is this partition's failure alone
            if self._live is not None and not isinstance(error, OwnershipError):
                self._live.abandon()
            self._go(Event.FAILED, self._explained(error))

    def _go(self, event: Event, cause: BaseException | None = None) -> None:
        self._life = self._life.after(event, cause)
        self._since = self._tools.wall()

    def _fence(self) -> None:
        began = self._tools.clock()
        self._drop_producer()
        if self._live is not None:
            self._ownership.doubt()
        self._tools.log.info("fencing", transactional_id=self._tools.place.names.transactional_id(self.partition))
        self._producer = self._opening.fence(self._ownership.ascertain)
        seconds = self._tools.clock() - began
        self._took("fence", seconds)
        self._tools.log.info("fenced", seconds=round(seconds, 3), attempt=self._producer.attempt)
        self._go(Event.FENCED)

    def _restore(self) -> None:
        """With state in memory the last mark may allow to keep it (rule T4); otherwise all comes from the topics."""
        if self._live is not None:
            mark = self._opening.last_mark()
            if mark is not None and self._live.resume(mark, self._committer(mark)):
                self._tools.log.info("settled", n=mark.n, position=self._live.position)
                self._go(Event.RESTORED)
                return
            self._drop_live()
        self._tools.log.info("restoring")
        self._tools = replace(self._tools, place=self._opening.locate())
        self._opening = Opening(self._tools, self._signals)
        with self._tools.tracing.step("restore"):
            self._opened = self._opening.restore()
        self._tools.speeds.expect(self._opened.restored.mark.pace)
        tell_restored(self._tools, self._opened.restored)
        self._took("restore", self._opened.restored.seconds)
        self._go(Event.RESTORED)

    def _replay(self) -> None:
        if self._live is None:
            assert self._opened is not None
            began = self._tools.clock()
            with self._tools.tracing.step("replay"):
                count = self._replaying(self._opened).run()
            seconds = self._tools.clock() - began
            self._took("replay", seconds)
            self._tools.log.info("replayed", records=count, seconds=round(seconds, 3))
            mark, restored = self._opened.restored.mark, self._opened.restored
            if not restored.from_standby:
                self._tools.speeds.learn(restored.work, msgspec.structs.replace(restored.spent, replay=seconds))
            self._live = Live(self._tools, self._signals, self.mailbox, self._opened.engine, self._committer(mark))
            self._live.inherit(self._opened.restored)
            if self._opened.offset_behind or mark.writer.reads < frame.NEWEST:
                self._live.renew()  # a mark of ours: `finish-upgrade` looks who is at work
            self._opened = None
            stream = self.mailbox.open_stream()
            self._live.begin()
            self._tools.report(Report(self.partition, "live", self._live.position, stream))
            self._tools.log.info("live", position=self._live.position, n=mark.n)
        self._go(Event.REPLAYED)

    def _work(self) -> None:
        assert self._live is not None
        self._go(self._live.run())

    def _drain(self) -> None:
        assert self._live is not None
        complete = self._live.drain()
        if complete:
            self._tools.log.info("drained", position=self._live.committer.position, n=self._live.committer.mark.n)
        self._go(Event.DRAINED if complete and not self._signals.lost() else Event.LOST)

    def _abort(self) -> None:
        """Nothing is committed; the next owner's fence aborts what is open."""
        self._drop()
        self._tools.log.info("aborted")
        self._go(Event.ABORTED)

    def _wait_for_retry(self) -> None:
        """Stay assigned and paused, hold no state; a fence is tried again only if the group says we are the owner."""
        cause = self._life.cause
        self._drop()
        tell_failed(self._tools, cause)
        clear_frames(cause)
        while (event := self._signals.event()) is None:
            self._signals.forget_failure()
            fenced = isinstance(cause, Fenced) and self._ownership.may_fence_again()
            if fenced:
                event = Event.RETRY
                break
            woken = self._signals.any.wait(_patience(cause))
            if not woken and type(cause) in _AGAIN_AFTER and self._let_in(cause):
                event = Event.RETRY
                break
        if event is Event.RETRY:
            self._tools.log.info("retrying", after=str(cause))
        self._go(event)

    # Small helpers

    def _replaying(self, opened: Recovered) -> Replaying:
        return Replaying(self._tools, self._signals, self._opening.progress, opened.engine, opened.restored)

    def _explained(self, error: Exception) -> Exception:
        """Which right is missing, where the brokers refuse us."""
        told = self._tools.access.explain(error)
        if not told:
            return error
        place = self._tools.place
        return AccessLost(
            f"{told}. Nothing is lost; it goes on by itself when that is mended, and `statehold retry "
            f"{self.partition}` tries now",
            topic=place.input,
            partition=self.partition,
        )

    def _let_in(self, cause: BaseException | None) -> bool:
        """A restore that is refused again would only load the brokers."""
        return not isinstance(cause, AccessLost) or self._tools.access.granted()

    def _took(self, step: str, seconds: float) -> None:
        self._timings[step] = round(seconds, 3)
        self._tools.metrics.observe(metrics.TAKEOVER_SECONDS, seconds, step)

    def _committer(self, mark: Mark) -> Committer:
        assert self._producer is not None
        settings = self._tools.settings
        return Committer(
            self._producer,
            self._tools.place,
            mark,
            origin=settings.output.origin,
            part_bytes=settings.kafka.message_max_bytes // 2,
            wall=self._tools.wall,
        )

    def _drop(self) -> None:
        self._drop_live()
        self._drop_producer()
        self._opened = None
        self.mailbox.open_stream()

    def _drop_live(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        try:
            live.close()
        except Exception as error:  # the user's on_stop may raise anything; the partition goes away all the same
            cause = f"in on_stop, or in closing: {error}"
            self._tools.log.error("failed", error=type(error).__name__, cause=cause, exc_info=True)

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()


def _patience(cause: BaseException | None) -> float | None:
    """How long a failed partition sleeps; None: until somebody tells it to try again."""
    if isinstance(cause, Fenced):
        return _CONFIRM_EVERY
    return _AGAIN_AFTER.get(type(cause)) if cause is not None else None
