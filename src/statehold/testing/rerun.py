"""Handles a partition's recorded past again, in batches of a given size, here or in another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

from statehold.api.handler import Handler
from statehold.api.record import Message, key_bytes
from statehold.bound.handler import new_state
from statehold.bound.reference import Version
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.messages.pinned_command import Pinned, PinnedMessage, Placed, TimeLimit, in_order
from statehold.state import digest
from statehold.state.state import State
from statehold.testing.backup import Beginning
from statehold.testing.memory.database import Tables, apply
from statehold.worker.failures.history import At, HandledRetry
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed

#: value, key, headers, partition
Sent = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


class Seen(NamedTuple):
    """Versions of the reference topics that the records from here on saw."""

    versions: Mapping[str, Version]


class Results(NamedTuple):
    """What a handler has made of a past."""

    #: by topic of an output
    outputs: Mapping[str, Sequence[Sent]]
    #: keys of effects
    effects: Sequence[object]
    #: rows of the sinks
    rows: Tables
    #: the stored values of each table
    stored: Mapping[str, Mapping[Any, bytes]]
    digest: bytes


@dataclass
class Past:
    """What a partition has handled, and how; another process can read it, if it can import the handler."""

    factory: Callable[[], Handler[Any]]
    names: Names
    partition: int
    output_partitions: int
    #: topics of the outputs
    topics: Sequence[str]
    messages: Sequence[Message]
    pinned: Sequence[Placed[Pinned | HandledRetry | TimeLimit | Seen]]
    decisions: dict[At, FailureDecision] = field(default_factory=dict)
    #: the state with which the partition began; None: an empty one
    beginning: Beginning | None = None
    #: shows an engine the reference data of a version
    see: Callable[[Engine, Seen], None] | None = None
    #: of the inputs, and so of the topic of each `Rekey`
    partitions: int = 1

    def run(self, sizes: Sequence[int]) -> Results:
        """Handle it in batches of these sizes in turn. :raises RecordError: the handler fails on a record."""
        engine = self._engine()
        outputs: dict[str, list[Sent]] = {topic: [] for topic in self.topics}
        effects: list[object] = []
        rows: Tables = {}
        for batch in in_order(self._batches(sizes), self.pinned):
            self._handle(engine, batch)
            for topic, value, key, partition, _, _, _, headers in engine.take_outputs():
                blob = key_bytes(key)
                if topic in outputs:  # the others are dead letters
                    outputs[topic].append((value, blob, tuple(headers or ()), partition))
            effects += [effect.key for effect in engine.effects.take()]
            for each in ((engine.sinks and engine.sinks.take()) or list)():
                apply(rows.setdefault(each.table, {}), each)
            engine.state.commit(engine.freeze(), delta=True)
        for topic in self.names.rekeys:
            outputs[topic] = self._by_partition(topic, outputs[topic])
        stored = {name: table.stored for name, table in engine.state.tables.items()}
        return Results(outputs, effects, rows, stored, digest.to_bytes(engine.state.digest))

    def _partitions_of(self, topic: str) -> int:
        return self.partitions if topic in self.names.rekeys else self.output_partitions

    def _by_partition(self, topic: str, sent: Sequence[Sent]) -> list[Sent]:
        """Return what was sent by a `Rekey`, partition by partition."""
        count = self.partitions
        placed = [(value, key, headers, murmur2(key, count) if to < 0 else to) for value, key, headers, to in sent]
        return sorted(placed, key=lambda each: each[3])

    def _engine(self) -> Engine:
        engine = Engine(
            self.factory,
            self.partition,
            output_partitions=self._partitions_of,
            names=self.names,
            state=self._state(),
        )
        if self.decisions:
            engine.open_dead_letters().decisions = dict(self.decisions)
        return engine

    def _state(self) -> State | None:
        if self.beginning is None:
            return None
        kind = self.factory if isinstance(self.factory, type) else type(self.factory())
        state = new_state(kind, traced=False, track_delta=False)
        for changes in self.beginning.changes:
            state.load(changes)
        state.loaded()
        return state

    def _batches(self, sizes: Sequence[int]) -> Iterator[Sequence[Message]]:
        at, size = 0, cycle(sizes)
        while at < len(self.messages):
            yield self.messages[at : (at := at + max(1, next(size)))]

    def _handle(self, engine: Engine, batch: Sequence[Message] | Pinned | HandledRetry | TimeLimit | Seen) -> None:
        """Handle a batch as the worker does: record by record if on_batch raises."""
        try:
            if isinstance(batch, Pinned):
                engine.obey(PinnedMessage(self.names.control, self.partition, batch))
                return
            if isinstance(batch, TimeLimit):
                engine.limit_time(batch.time)
                return
            if isinstance(batch, HandledRetry):
                handle(engine, *batch)
                return
            if isinstance(batch, Seen):
                assert self.see is not None
                self.see(engine, batch)
                return
            try:
                engine.run(batch)
            except HandlingFailed as poison:
                if not isinstance(poison, BatchFailed):
                    raise
                engine.rollback()
                engine.run(batch, one_by_one=True)
        except HandlingFailed as poison:
            raise poison.error from poison
