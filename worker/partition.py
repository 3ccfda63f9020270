"""One partition's worker: its thread runs one phase of the lifecycle after the other; the manager calls the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from statehold.api.record import Message
from statehold.errors import OwnershipError, class_and_text, of_thread, text_of
from statehold.health.fork_guard import no_fork
from statehold.ports import Cancelled, WorkerReport
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import ProducerDropped
from statehold.worker.common.lifecycle import Event, Lifecycle, Phase
from statehold.worker.common.mailbox import Batch, Mailbox
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.signals import Signals
from statehold.worker.drain import Drain
from statehold.worker.failed import explained, hold_failed
from statehold.worker.inputs.merging_mailbox import MergingMailbox
from statehold.worker.replicas.queries import Committed
from statehold.worker.status import PartitionStatus
from statehold.worker.takeover import Takeover
from statehold.worker.watchdog import Watchdog


def new_mailbox(tools: Tools) -> Mailbox:
    """Return the mailbox for one input, or for several."""
    names = tools.place.names
    if not names.others:
        return Mailbox(tools.threads)
    inputs, allowed, wall = tools.settings.inputs, tools.settings.time.max_ahead, tools.wall
    latest = None if allowed == "off" else lambda: int((wall() + allowed) * 1000)
    own = {index for index, topic in enumerate(names.inputs) if topic in names.rekeys}
    return MergingMailbox(
        order=inputs.order, idle=inputs.idle, clock=tools.clock, threads=tools.threads, latest=latest, own=own
    )


class PartitionWorker:
    """Created by the manager for one assignment of one partition; used once."""

    def __init__(self, tools: Tools, signals: Signals | None = None, mailbox: Mailbox | None = None) -> None:
        self._tools = tools
        self.partition = tools.place.partition
        self.mailbox = mailbox or new_mailbox(tools)
        self.closed = tools.threads.event()
        self._signals = signals or Signals(tools.threads)
        self._signals.wake = self.mailbox.signal
        self._life = Lifecycle()
        self._since = tools.wall()
        self._ownership = Ownership(tools, self._signals)
        self._watchdog = Watchdog(tools, self._signals)
        self._takeover = Takeover(tools, self._signals, self.mailbox, self._ownership)
        #: each returns the event that ends it
        self._phases: dict[Phase, Callable[[], Event | None]] = {
            Phase.FENCING: self._takeover.fence,
            Phase.RESTORING: self._takeover.restore,
            Phase.REPLAYING: self._takeover.replay,
            Phase.LIVE: self._work,
            Phase.DRAINING: self._drain,
            Phase.ABORTING: self._abort,
            Phase.FAILED: self._wait_for_retry,
        }

    # The manager's side; none of these blocks

    def start(self, since: float) -> None:
        """`since`: monotonic time at which the poll began that brought the assignment."""
        self._ownership.assigned(since)
        self._thread = self._tools.threads.thread(self._run, f"partition-{self.partition}")
        self._thread.start()

    @property
    def depth(self) -> int:
        return self.mailbox.depth

    def offer(self, stream: int, previous: int, messages: Sequence[Message]) -> None:
        self.mailbox.put(Batch(stream, previous, messages))

    def revoke(self, deadline: float, *, final: bool) -> None:
        """Commit the processed records until `deadline` (monotonic seconds), then close."""
        self._signals.revoke(deadline, final=final)

    def lose(self) -> None:
        """Close without committing anything."""
        self._signals.lose()

    def fail(self, cause: BaseException) -> None:
        """The consumer saw an error that ends the work on this partition."""
        self._signals.fail(cause)

    def retry(self) -> None:
        """Start again with a fence, if the partition has failed; otherwise do nothing."""
        if self._life.phase is Phase.FAILED:
            self._signals.retry()

    def attend(self, now: float) -> None:
        """Run the watchdog; the manager calls it many times a second. See `statehold.worker.watchdog`."""
        self._watchdog.attend(now)

    @property
    def stuck(self) -> bool:
        """The watchdog has abandoned the thread inside the handler, so waiting for it does not help."""
        return self._watchdog.failure is not None

    @property
    def phase(self) -> Phase:
        """The phase now. Any thread."""
        return self._life.phase

    def status(self) -> PartitionStatus:
        """Phase, position and cause; any thread."""
        place, mailbox, stuck = self._tools.place, self.mailbox.depth, self._watchdog.failure
        return PartitionStatus.of(place, self._life, self._since, self._takeover, mailbox=mailbox, stuck=stuck)

    def committed(self) -> Committed | None:
        """Return the state for queries, while the partition is live; any thread."""
        live = self._takeover.live if self._life.phase is Phase.LIVE else None
        return None if live is None else Committed(live.engine.state, lambda: live.record)

    # The partition's thread

    @no_fork()
    def _run(self) -> None:
        try:
            event = self._signals.event()  # a retry before the start means nothing, because there is no failure yet
            self._go(event if event in (Event.LOST, Event.REVOKED) else Event.START)
            while self._life.phase is not Phase.CLOSED:
                self._step(self._phases[self._life.phase])
        except BaseException as error:  # a thread must not die unseen (rule A6)
            self._tools.log.error("thread_died", cause=class_and_text(error), exc_info=True)
            self._tools.report(WorkerReport(self.partition, "died", cause=of_thread(error)))
        finally:
            self._takeover.release()
            self._tools.metrics.forget()
            self.closed.set()
            self._tools.log.info(
                "partition_closed", cause=text_of(self._life.cause) if self._life.cause is not None else None
            )
            self._tools.report(WorkerReport(self.partition, "closed", cause=self._life.cause))

    def _step(self, phase: Callable[[], Event | None]) -> None:
        """Run one phase; turn every exception into an event. None: the phase has not ended."""
        try:
            if (event := phase()) is not None:
                self._go(event)
        except Cancelled:
            self._go(self._signals.event() or Event.LOST)
        except ProducerDropped as dropped:
            self._tools.log.warning("producer_replaced", cause=str(dropped))
            self._go(Event.PRODUCER_DROPPED)
        except Exception as error:  # noqa: BLE001  because any error is the failure of this partition alone
            if not isinstance(error, OwnershipError):
                self._takeover.abandon()
            self._go(Event.FAILED, explained(self._tools, error))

    def _go(self, event: Event, cause: BaseException | None = None) -> None:
        self._life = self._life.after(event, cause)
        self._since = self._tools.wall()

    def _work(self) -> Event | None:
        assert self._takeover.live is not None
        return self._takeover.live.run()

    def _drain(self) -> Event:
        assert self._takeover.live is not None
        return Drain(self._tools, self._signals, self._takeover.live).run()

    def _abort(self) -> Event:
        """Commit nothing; the next owner's fence aborts the open transaction."""
        self._takeover.release()
        self._tools.log.info("aborted")
        return Event.ABORTED

    def _wait_for_retry(self) -> Event | None:
        return hold_failed(self._tools, self._signals, self._ownership, self._takeover.release, self._life.cause)
