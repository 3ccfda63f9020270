"""One partition's thread: one method per phase of the lifecycle, and the interface for the manager."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec

from statehold.errors import OwnershipError, of_thread
from statehold.ports import Cancelled, Transactions
from statehold.record import Message
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Report, Tools
from statehold.worker.common.errors import ProducerDropped
from statehold.worker.common.lifecycle import Event, Lifecycle, Phase
from statehold.worker.common.mailbox import Batch, Mailbox
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.reporting import log_failure
from statehold.worker.common.signals import Signals
from statehold.worker.common.traceback_gc import clear_frames
from statehold.worker.drain import Drain
from statehold.worker.failed import await_retry, explained
from statehold.worker.followers.queries import Committed
from statehold.worker.live import go_live, open_participants
from statehold.worker.loop import LiveLoop
from statehold.worker.recovery.recovery import Recovered, Recovery
from statehold.worker.recovery.replay import GapReplay
from statehold.worker.status import PartitionStatus
from statehold.worker.transaction.kafka_transaction import KafkaTransaction
from statehold.worker.watchdog import Watchdog


class PartitionWorker:
    """Created by the manager for one assignment of one partition; used once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.partition = tools.place.partition
        self.mailbox = Mailbox()
        self.closed = threading.Event()
        self._signals = Signals()
        self._recovery = Recovery(tools, self._signals)
        self._life = Lifecycle()
        self._since = tools.wall()
        self._timings: dict[str, float] = {}
        self._producer: Transactions | None = None
        self._recovered: Recovered | None = None
        self._live: LiveLoop | None = None
        self._draining: Drain | None = None
        self._ownership = Ownership(tools, self._signals)
        self._watchdog = Watchdog(tools, self._signals)
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
        """Commit the processed records until `deadline` (monotonic seconds), then close."""
        self._signals.revoke(deadline, final=final)
        self.mailbox.signal()

    def lose(self) -> None:
        """Close without committing anything."""
        self._signals.lose()
        self.mailbox.signal()

    def fail(self, cause: BaseException) -> None:
        """The consumer saw an error that ends the work on this partition."""
        self._signals.fail(cause)
        self.mailbox.signal()

    def retry(self) -> None:
        """Start again with a fence, if the partition has failed; otherwise do nothing."""
        if self._life.phase is Phase.FAILED:
            self._signals.retry()
            self.mailbox.signal()

    def attend(self, now: float) -> None:
        """Run the watchdog; the manager calls it many times a second. See `statehold.worker.watchdog`."""
        self._watchdog.attend(now)

    @property
    def stuck(self) -> bool:
        """The watchdog has abandoned the thread inside the handler, so waiting for it does not help."""
        return self._watchdog.failure is not None

    def status(self) -> PartitionStatus:
        """Phase, position and cause; any thread."""
        life, stuck = self._life, self._watchdog.failure
        return PartitionStatus.of(
            self.partition,
            life if stuck is None else Lifecycle(Phase.FAILED, stuck),
            self._live,
            input=self._tools.place.input,
            mailbox=self.mailbox.depth,
            restore=self._recovery.progress.view(),
            since=self._since,
            timings=self._timings.copy(),
            stuck=stuck is not None,
        )

    def committed(self) -> Committed | None:
        """Return the state for queries, while the partition is live; any thread."""
        live = self._live
        if live is None or self._life.phase is not Phase.LIVE:
            return None
        return Committed(live.engine.state, lambda: live.record)

    # The partition's thread

    def _run(self) -> None:
        try:
            event = self._signals.event()  # a retry before the start means nothing, because there is no failure yet
            self._go(event if event in (Event.LOST, Event.REVOKED) else Event.START)
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

    def _step(self, phase: Callable[[], None]) -> None:
        """Run one phase; turn every exception into an event."""
        try:
            phase()
        except Cancelled:
            self._go(self._signals.event() or Event.LOST)
        except ProducerDropped as dropped:
            self._tools.log.warning("producer_replaced", cause=str(dropped))
            self._go(Event.PRODUCER_DROPPED)
        except Exception as error:  # noqa: BLE001  because any error is the failure of this partition alone
            if self._live is not None and not isinstance(error, OwnershipError):
                self._live.abandon()
            self._go(Event.FAILED, explained(self._tools, error))

    def _go(self, event: Event, cause: BaseException | None = None) -> None:
        self._life = self._life.after(event, cause)
        self._since = self._tools.wall()

    def _fence(self) -> None:
        began = self._tools.clock()
        self._drop_producer()
        if self._live is not None:
            self._ownership.doubt()
        self._tools.log.info("fencing", transactional_id=self._tools.place.names.transactional_id(self.partition))
        self._producer = self._recovery.fence(self._ownership.ascertain)
        seconds = self._took("fence", began)
        self._tools.log.info("fenced", seconds=round(seconds, 3), attempt=self._producer.attempt)
        self._go(Event.FENCED)

    def _restore(self) -> None:
        """With state in memory the last commit record may allow to keep it (rule T4); otherwise restore from Kafka."""
        if self._live is not None:
            record = self._recovery.last_mark()
            if record is not None and self._live.resume(record, self._transaction(record)):
                self._tools.log.info("settled", n=record.n, position=self._live.transaction.position)
                self._go(Event.RESTORED)
                return
            self._drop_live()
        self._tools.log.info("restoring")
        self._tools = replace(self._tools, place=self._recovery.locate())
        self._recovery = Recovery(self._tools, self._signals)
        with self._traced("restore"):
            self._recovered = self._recovery.restore()
        self._observe("restore", self._recovered.restored.seconds)
        self._go(Event.RESTORED)

    def _replay(self) -> None:
        """Handle the gap again and go live; a partition that kept its state has no gap."""
        if self._live is None:
            assert self._recovered is not None
            recovered, restored, began = self._recovered, self._recovered.restored, self._tools.clock()
            with self._traced("replay"):
                count = self._replaying(recovered).run()
            seconds = self._took("replay", began)
            self._tools.log.info("replayed", records=count, seconds=round(seconds, 3))
            if not restored.from_standby:
                self._tools.speeds.learn(restored.work, msgspec.structs.replace(restored.spent, replay=seconds))
            kafka = self._transaction(restored.mark)
            self._live, self._draining = go_live(
                self._tools, self._signals, self.mailbox, recovered.engine, kafka, restored
            )
            if recovered.offset_behind or restored.mark.writer.reads < frame.NEWEST:
                self._live.commit_soon()  # because `finish-upgrade` reads the running releases from commit records
            self._recovered = None
            stream = self.mailbox.open_stream()
            open_participants(self._live)
            position = self._live.transaction.position
            place = self._tools.place
            topic_id = place.topic_ids.get(place.input, "")
            self._tools.report(Report(self.partition, "live", position, stream, topic_id=topic_id))
            self._tools.log.info("live", position=position, n=restored.mark.n)
        self._go(Event.REPLAYED)

    def _work(self) -> None:
        assert self._live is not None
        self._go(self._live.run())

    def _drain(self) -> None:
        assert self._live is not None
        assert self._draining is not None
        complete = self._draining.run()
        if complete:
            self._tools.log.info("drained", position=self._live.transaction.kafka.position, n=self._live.record.n)
        self._go(Event.DRAINED if complete and not self._signals.lost() else Event.LOST)

    def _abort(self) -> None:
        """Commit nothing; the next owner's fence aborts the open transaction."""
        self._drop()
        self._tools.log.info("aborted")
        self._go(Event.ABORTED)

    def _wait_for_retry(self) -> None:
        cause = self._life.cause
        self._drop()
        log_failure(self._tools, cause)
        clear_frames(cause)
        self._go(await_retry(self._tools, self._signals, self._ownership, cause))

    # Small helpers

    def _replaying(self, recovered: Recovered) -> GapReplay:
        return GapReplay(self._tools, self._signals, self._recovery.progress, recovered.engine, recovered.restored)

    def _transaction(self, record: CommitRecord) -> KafkaTransaction:
        assert self._producer is not None
        return KafkaTransaction(
            self._producer,
            self._tools.place,
            record,
            origin=self._tools.settings.output.origin,
            part_bytes=self._tools.settings.kafka.message_max_bytes // 2,
            wall=self._tools.wall,
            clock=self._tools.clock,
        )

    def _traced(self, step: str) -> AbstractContextManager[Any]:
        return nullcontext() if self._tools.tracing is None else self._tools.tracing.step(step)

    def _took(self, step: str, began: float) -> float:
        seconds = self._tools.clock() - began
        self._observe(step, seconds)
        return seconds

    def _observe(self, step: str, seconds: float) -> None:
        self._timings[step] = round(seconds, 3)
        self._tools.metrics.observe(metrics.TAKEOVER_SECONDS, seconds, step)

    def _drop(self) -> None:
        self._drop_live()
        self._drop_producer()
        self._recovered = None
        self.mailbox.open_stream()

    def _drop_live(self) -> None:
        live, self._live, self._draining = self._live, None, None
        if live is None:
            return
        try:
            live.close()
        except Exception as error:  # on_stop may raise anything; the partition is released in any case
            cause = f"in on_stop, or in closing: {error}"
            self._tools.log.error("failed", error=type(error).__name__, cause=cause, exc_info=True)

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()
