"""Take a partition over: fence, restore, replay the gap, and build the live loop with the handler's participants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import msgspec

from statehold.api.handler import Handler
from statehold.bound.policies import retry_topics
from statehold.disk.disk_state import DiskState
from statehold.errors import UsageError, text_of
from statehold.ports import Transactions, WorkerReport
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.state import digest
from statehold.telemetry import metrics
from statehold.worker.calls.participant import DurableCalls
from statehold.worker.common.context import Tools
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.mailbox import Mailbox
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.reporting import log_pause, log_types
from statehold.worker.common.signals import Signals
from statehold.worker.deaths import input_positions, noted, record_buffer
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.full_snapshots.deltas import Deltas, RestoreCost, SnapshotPolicy
from statehold.worker.full_snapshots.local_store import LocalStore
from statehold.worker.full_snapshots.scheduler import FullSnapshots
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.event_time import WindowTime
from statehold.worker.handler.pending_effects import require_effects
from statehold.worker.handler.time_limit import live_limit
from statehold.worker.inputs.merging_mailbox import MergingMailbox
from statehold.worker.inputs.partition_inputs import PartitionInputs
from statehold.worker.loop import LiveLoop
from statehold.worker.participants.commands import ControlCommands
from statehold.worker.participants.commit_spans import CommitSpans
from statehold.worker.participants.dead_letters import DeadLetters
from statehold.worker.participants.idle_clock import IdleClock
from statehold.worker.participants.late_records import LateRecords
from statehold.worker.participants.records_ahead import RecordsAhead
from statehold.worker.participants.reference_data import ReferenceData
from statehold.worker.participants.rekey_hops import RekeyHops
from statehold.worker.participants.retry_topics import RetryTopics
from statehold.worker.participants.side_effects import SideEffects
from statehold.worker.participants.time_slices import SlicedTime
from statehold.worker.recovery.recovery import Recovered, Recovery
from statehold.worker.recovery.replay import GapReplay
from statehold.worker.sinks.coordinator import SinkCoordinator
from statehold.worker.transaction.kafka_transaction import KafkaTransaction
from statehold.worker.transaction.participants import Participant, Participants
from statehold.worker.transaction.pipeline import TransactionPipeline
from statehold.worker.transaction.record_buffer import CommitPolicy, RecordBuffer
from statehold.worker.transaction.state import TransactionState

#: The loop calls the participants in this order and closes them in reverse. A further participant comes last.
ORDER: tuple[type[Participant], ...] = (
    CommitSpans,  # before all others, because a span covers what they contribute
    ReferenceData,  # before side inputs, because they see the version that a transaction begins with
    RecordsAhead,  # before SinkCoordinator, because the database's note has the time limit, too
    SlicedTime,  # before SinkCoordinator, because the database's note has the slice, too
    SinkCoordinator,  # before other side inputs, because a database that is ahead names those to repeat
    ControlCommands,
    IdleClock,  # after commands, because an idle transaction with a command has no room for a tick
    RetryTopics,  # after commands, because a redriven dead letter is older than a retry
    DurableCalls,  # after commands, because one may discard a call
    LateRecords,
    RekeyHops,
    DeadLetters,  # before Deltas, because a failure decision forces a delta
    SideEffects,
    Deltas,  # before FullSnapshots, because they use the cost of the deltas
    LocalStore,  # after Deltas, whose cost its label has, and before FullSnapshots, which start at what the files hold
    FullSnapshots,  # last, because a snapshot starts at a commit that all others have applied
)


class Takeover:
    """Holds the partition's producer and its live loop. Used by the partition's thread; any thread may read fields."""

    def __init__(self, tools: Tools, signals: Signals, mailbox: Mailbox, ownership: Ownership) -> None:
        self._tools, self._signals, self._mailbox, self._ownership = tools, signals, mailbox, ownership
        self._producer: Transactions | None = None
        self._recovered: Recovered | None = None
        self.recovery = Recovery(tools, signals)
        #: set by the end of a replay; it survives a replaced producer (rule T4)
        self.live: LiveLoop | None = None
        #: None for a service with one input: the manager delivers its records
        self._inputs = PartitionInputs(tools, signals, mailbox) if isinstance(mailbox, MergingMailbox) else None
        #: a span around a step; without tracing none
        self._step: Callable[[str], AbstractContextManager[Any]] = (
            nullcontext if tools.tracing is None else tools.tracing.step
        )
        #: seconds of the last fence, restore and replay
        self.timings: dict[str, float] = {}

    def fence(self) -> Event:
        began = self._tools.clock()
        self._drop_producer()
        if self.live is not None:
            self._ownership.doubt()
        names = self._tools.place.names
        self._tools.log.info("fencing", transactional_id=names.transactional_id(self._tools.place.partition))
        self._producer = self.recovery.fence(self._ownership.ascertain)
        seconds = self._took("fence", self._tools.clock() - began)
        self._tools.log.info("predecessor_fenced", seconds=round(seconds, 3), attempt=self._producer.attempt)
        return Event.FENCED

    def restore(self) -> Event:
        """With state in memory the last commit record may allow to keep it (rule T4); otherwise restore from Kafka."""
        if self.live is not None:
            if self._resume(self.live):
                return Event.RESTORED
            self._drop_live()
        self._tools.log.info("restoring")
        self._tools = replace(self._tools, place=self.recovery.locate())
        self.recovery = Recovery(self._tools, self._signals)
        with self._step("restore"), self.recovery.comparing_topics():
            self._recovered = recovered = self.recovery.restore()
        record = recovered.restored.commit_record
        if record.effects:
            require_effects(recovered.engine.handler, self._tools.place, record)
        if record.pace:
            self._tools.speeds.expect(record.pace)
        self._took("restore", self._recovered.restored.seconds)
        return Event.RESTORED

    def _resume(self, live: LiveLoop) -> bool:
        assert self._producer is not None
        record = self.recovery.last_commit_record()
        if record is None or not live.pipeline.resume(record, self._transaction(live.engine, record)):
            return False
        self._tools.log.info("outcome_resolved", n=record.n, position=live.transaction.position)
        return True

    def replay(self) -> Event:
        """Handle the gap again and go live; a partition that kept its state has no gap."""
        if self.live is None:
            assert self._recovered is not None
            recovered, restored, began = self._recovered, self._recovered.restored, self._tools.clock()
            engine, record, count = recovered.engine, restored.commit_record, 0
            gap = restored.pinned or restored.position < record.position(self._tools.place.names.input)
            with self._step("replay"), self.recovery.comparing_topics():
                if gap or digest.to_bytes(engine.state.digest) != record.digest:  # rule D1
                    progress = self.recovery.progress
                    count = GapReplay(self._tools, self._signals, progress, engine, restored).run()
            seconds = self._took("replay", self._tools.clock() - began)
            self._tools.log.info("replayed", records=count, seconds=round(seconds, 3))
            if not (restored.from_standby or restored.from_files):
                self._tools.speeds.learn(restored.work, msgspec.structs.replace(restored.spent, replay=seconds))
            self.live, self._recovered = self._build(recovered), None
            self._open(self.live)
        return Event.REPLAYED

    def _transaction(self, engine: Engine, record: CommitRecord) -> KafkaTransaction:
        assert self._producer is not None
        return KafkaTransaction(self._producer, self._tools, record, engine.state.used)

    def _build(self, recovered: Recovered) -> LiveLoop:
        """Build the loop with the participants that this handler needs."""
        tools, signals, engine, restored = self._tools, self._signals, recovered.engine, recovered.restored
        engine.leaves_room = True
        now, record = tools.clock(), restored.commit_record
        kafka = self._transaction(engine, record)
        # The first idle moment commits if the group's offset is missing or old (rule D6), or if an older release wrote
        # the last commit record: `finish-upgrade` reads the running releases there; or if it has not all types.
        untyped = kafka.types.unknown if record.format >= frame.TYPED else frozenset()
        renew = recovered.offset_behind or record.writer.reads < frame.NEWEST or bool(untyped)
        if kafka.types.news:
            log_types(tools, record, untyped)
        careful = tools.deaths is not None or (
            tools.control is not None and record.paused is None and tools.control_exists()
        )
        transaction = TransactionState(
            kafka=kafka,
            buffer=record_buffer(tools, signals, record) if careful else RecordBuffer(kafka.position),
            policy=CommitPolicy(
                tools.settings.commit, tools.open_transactions, last_commit=-math.inf if renew else now
            ),
            position=kafka.position,
            reached=kafka.position,
        )
        snapshots = SnapshotPolicy(tools.settings.snapshot, last_delta=now, last_full=now)
        cost = RestoreCost(tools.speeds, snapshots, restored)
        deltas = Deltas(tools, transaction, snapshots, cost, restored)
        full_snapshots = FullSnapshots(tools, snapshots, cost, restored, signals.leaving)
        participants = Participants(ORDER)
        on_first = partial(_join_dead_letters, tools, engine, participants)
        decisions = cache(partial(FailureDecisions, tools, signals, engine, on_first))
        files = (
            [LocalStore(tools, engine.state, snapshots, cost, restored, signals.fail)]
            if isinstance(engine.state, DiskState)
            else []
        )
        members: list[Participant] = [deltas, full_snapshots, *files]
        if tools.tracing is not None:
            members.append(CommitSpans(tools.tracing))
        if engine.references or record.reference:
            members.append(ReferenceData(engine, record))
        if engine.sinks is not None:
            members.append(SinkCoordinator(tools, signals, engine, transaction, decisions))
        if tools.control is not None:
            members.append(ControlCommands(tools, engine, tools.control(self._mailbox.signal), decisions))
        if engine.event_time is not None or engine.calls is not None or engine.sends is not None:
            members += _of_state(tools, signals, engine, transaction, participants.blocked, self._mailbox.signal)
        kind = type(engine.handler)
        if kind.on_failure and (topics := retry_topics(kind, tools.place.names)):
            members.append(RetryTopics(tools, engine, topics, decisions, record, participants.blocked))
        if engine.dead_letters is not None:
            members.append(DeadLetters(engine.dead_letters, tools.metrics))
        participants.join(*members)
        join_effects = partial(_join_effects, tools, signals, engine, transaction, participants)
        if record.effects:
            join_effects()
        else:
            engine.on_first_effect = join_effects
        run = None if tools.deaths is None else noted(tools.deaths, engine.run, kafka.position)
        pipeline = TransactionPipeline(tools, signals, engine, transaction, participants, decisions, run)
        return LiveLoop(tools, signals, self._mailbox, engine, pipeline, full_snapshots)

    def _open(self, live: LiveLoop) -> None:
        """Open the participants with the last commit record, call the user's hook, and ask the manager for records.

        Raises as `Participant.opened`, and as on_live.
        """
        tools, place, inputs = self._tools, self._tools.place, self._inputs
        record = live.transaction.kafka.record
        for opened in live.participants.on_opened:
            opened(record)
        if type(live.engine.handler).on_live is not Handler.on_live:
            live.engine.call_hook("on_live")
            _refuse_writes(live.engine, "on_live")
        position, first = live.transaction.position, live.transaction.buffer.turns
        stream = self._mailbox.open_stream() if inputs is None else inputs.open(record, first)
        topic_id = place.topic_ids.get(place.names.input, "")
        live_now = WorkerReport(place.partition, "live", position, stream, None, topic_id, inputs is not None)
        tools.report(live_now)
        tools.log.info("live", position=position, n=record.n)
        if record.paused is not None:
            log_pause(tools, record)

    def abandon(self) -> None:
        """Abort the open transaction before the partition fails; see `Rollback.abandon`."""
        if self.live is not None:
            self.live.pipeline.rollback.abandon()

    def release(self) -> None:
        """Close the live loop, drop the producer, and take no further batch."""
        self._drop_live()
        self._drop_producer()
        if self._recovered is not None:
            self._recovered.engine.state.close(flush=self._signals.final)
        self._recovered = None
        self._mailbox.open_stream()

    def _drop_live(self) -> None:
        live, self.live = self.live, None
        if self._inputs is not None:
            self._inputs.close()
        if live is None:
            return
        try:
            live.close()
        except BaseException as error:  # on_stop may raise anything, SystemExit too; the partition is released
            cause = f"in on_stop, or in closing: {text_of(error)}"
            self._tools.log.error("failed", error=type(error).__name__, cause=cause, exc_info=True)
        finally:
            live.engine.state.close(flush=self._signals.final)
            if self._tools.deaths is not None:
                self._tools.deaths.close(input_positions(self._tools, live.record))

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()

    def _took(self, step: str, seconds: float) -> float:
        self.timings[step] = round(seconds, 3)
        self._tools.metrics.observe(metrics.TAKEOVER_SECONDS, seconds, step)
        return seconds


def _join_effects(
    tools: Tools, signals: Signals, engine: Engine, transaction: TransactionState, participants: Participants
) -> None:
    participants.join(SideEffects(tools, signals, engine, transaction))


def _of_state(
    tools: Tools,
    signals: Signals,
    engine: Engine,
    transaction: TransactionState,
    blocked: Callable[[], bool],
    wake: Callable[[], None],
) -> Iterator[Participant]:
    """Yield the participants of event time, of durable calls and of sends by another key."""
    event_time = engine.event_time
    if engine.sends is not None:
        yield RekeyHops(tools, engine.sends)
    if event_time is not None:
        yield IdleClock(tools, engine, event_time, blocked)
        yield SlicedTime(tools, event_time.slices, transaction.buffer)
    if isinstance(event_time, WindowTime):
        yield LateRecords(tools, event_time, type(engine.handler))
    if event_time is not None:
        engine.live_limit = live_limit(type(engine.handler), tools.settings, tools.wall)
        engine.limit_time(None)
    if engine.live_limit is not None:
        yield RecordsAhead(tools, engine.live_limit)
    if engine.calls is not None:
        yield DurableCalls(tools, signals, engine, engine.calls, wake)


def _join_dead_letters(tools: Tools, engine: Engine, participants: Participants) -> None:
    participants.join(DeadLetters(engine.open_dead_letters(), tools.metrics))


def _refuse_writes(engine: Engine, hook: str) -> None:
    """:raises UsageError: the hook wrote or sent something, which belongs to no record."""
    written = [name for name, table in engine.state.tables.items() if table.written]
    if engine.sinks is not None:
        written += engine.sinks.written
    if written or engine.outputs:
        engine.rollback()
        raise UsageError(
            f"{hook} wrote to {', '.join(written) or 'an output'}: that belongs to no record, so an abort or a "
            f"replay would lose it. Next: write in on_record, on_batch or on_command"
        )
