"""Go live with a restored state: build the loop with the participants that the handler uses."""

from __future__ import annotations

from functools import partial

from statehold.declared.policies import retry_topics
from statehold.handler import Handler
from statehold.snapshot.restore.restore import Restored
from statehold.worker.common.context import Tools
from statehold.worker.common.mailbox import Mailbox
from statehold.worker.common.signals import Signals
from statehold.worker.drain import Drain
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.fulls.deltas import Deltas, RestoreCost, SnapshotPolicy
from statehold.worker.fulls.scheduler import FullSnapshots
from statehold.worker.handler.engine import Engine
from statehold.worker.loop import LiveLoop
from statehold.worker.participants.commands import ControlCommands
from statehold.worker.participants.dead_letters import DeadLetters
from statehold.worker.participants.idle_clock import IdleClock
from statehold.worker.participants.reference_data import ReferenceData
from statehold.worker.participants.retry_topics import RetryTopics
from statehold.worker.participants.side_effects import SideEffects
from statehold.worker.sinks.coordinator import SinkCoordinator
from statehold.worker.transaction.kafka_transaction import KafkaTransaction
from statehold.worker.transaction.participants import Participant, Participants
from statehold.worker.transaction.pipeline import TransactionPipeline
from statehold.worker.transaction.plan import CommitPolicy
from statehold.worker.transaction.record_buffer import RecordBuffer
from statehold.worker.transaction.state import TransactionState

#: The loop calls the participants in this order and closes them in reverse. A further participant comes last.
ORDER: tuple[type[Participant], ...] = (
    ReferenceData,  # first, because side inputs see the version that a transaction begins with
    SinkCoordinator,  # before other side inputs, because a database that is ahead names those to repeat
    ControlCommands,
    IdleClock,  # after commands, because an idle transaction with a command has no room for a tick
    RetryTopics,  # after commands, because a redriven dead letter is older than a retry
    DeadLetters,  # before Deltas, because a failure decision forces a delta
    SideEffects,
    Deltas,  # before FullSnapshots, because they use the cost of the deltas
    FullSnapshots,  # last, because a snapshot starts at a commit that all others have applied
)


def go_live(
    tools: Tools, signals: Signals, mailbox: Mailbox, engine: Engine, kafka: KafkaTransaction, restored: Restored
) -> tuple[LiveLoop, Drain]:
    """Build the loop with the participants that this handler needs. Raises as `Participant.opened`, and as on_live."""
    now, record = tools.clock(), kafka.record
    transaction = TransactionState(
        kafka=kafka,
        buffer=RecordBuffer(),
        policy=CommitPolicy(tools.settings.commit, last_commit=now),
        position=kafka.position,
        reached=kafka.position,
    )
    snapshots = SnapshotPolicy(tools.settings.snapshot, last_delta=now, last_full=now)
    cost = RestoreCost(tools.speeds, snapshots, record)
    deltas = Deltas(tools, engine.state, transaction, snapshots, cost)
    deltas.inherit(restored)
    fulls = FullSnapshots(tools, engine.state, snapshots, cost, record, signals.leaving)
    fulls.inherit(restored)
    decisions = FailureDecisions(tools, signals, engine)
    participants = Participants(ORDER, [deltas, fulls])
    if engine.references or record.reference:
        participants.join(ReferenceData(engine, record))
    if engine.sinks is not None:
        participants.join(SinkCoordinator(tools, signals, engine, transaction, decisions))
    if tools.control is not None:
        participants.join(ControlCommands(tools, engine, tools.control(), decisions))
    if engine.event_time is not None:
        participants.join(IdleClock(tools, engine, engine.event_time, participants.blocked))
    kind = type(engine.handler)
    if kind.on_failure and (topics := retry_topics(kind, tools.place.names)):
        participants.join(RetryTopics(tools, engine, topics, decisions, record, participants.blocked))
    if engine.dead_letters is not None:
        participants.join(DeadLetters(engine.dead_letters, tools.metrics))
    join_effects = partial(_join_effects, tools, signals, engine, transaction, participants)
    if record.effects:
        join_effects()
    else:
        engine.effects.on_first = join_effects
    for further in tools.participants:
        participants.join(further(engine, record))
    pipeline = TransactionPipeline(tools, signals, engine, transaction, participants, decisions)
    live = LiveLoop(tools, signals, mailbox, engine, transaction, pipeline, participants, decisions, fulls)
    return live, Drain(tools, signals, live, pipeline)


def _join_effects(
    tools: Tools, signals: Signals, engine: Engine, transaction: TransactionState, participants: Participants
) -> None:
    participants.join(SideEffects(tools, signals, engine, transaction))


def open_participants(live: LiveLoop) -> None:
    """Just before LIVE: participants see the last commit record, then the user's hook runs."""
    for opened in live.participants.on_opened:
        opened(live.record)
    if type(live.engine.handler).on_live is not Handler.on_live:
        live.engine.call_hook("on_live")
        live.engine.refuse_writes("on_live")
