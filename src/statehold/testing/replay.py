"""Handles the same input in other batches and compares tables, outputs and effects (rule M4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, zip_longest
from typing import Any, NamedTuple

from statehold.errors import UsageError
from statehold.messages.pinned_command import Pinned, PinnedMessage, Placed, in_order
from statehold.output import ORIGIN, ORIGIN_HEADER
from statehold.record import MemoryMessage, Message
from statehold.reference import Version
from statehold.snapshot.format import digest
from statehold.table import PartitionTable
from statehold.testing.memory.database import Tables, apply
from statehold.testing.memory.log import MemoryLog
from statehold.testing.stepped import EffectCall
from statehold.worker.failures.history import At, HandledRetry
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed

#: value, key, headers, partition
_Sent = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


class Seen(NamedTuple):
    """Versions of the reference topics that the records from here on saw."""

    versions: Mapping[str, Version]


class BatchesMatter(UsageError):
    """Handling the same input in other batches gave another result."""


class Replay:
    """Handles one partition's input again and compares the result with the recorded one."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        partition: int,
        messages: Sequence[Message],
        pinned: Sequence[Placed[Pinned | HandledRetry | Seen]],
        control: str,
        expected: bytes,
        tables: Mapping[str, PartitionTable[Any, Any]],
    ) -> None:
        """`expected`: the digest of the state that `tables` hold."""
        self._engine, self._partition = engine, partition
        self._messages, self._pinned, self._digest, self._tables = messages, pinned, expected, tables
        self._control = control
        self._outputs: dict[str, list[_Sent]] = {}
        self._effects: list[object] = []
        self._rows: Tables | None = None
        self._decisions: dict[At, FailureDecision] = {}
        self._see: Callable[[Engine, Seen], None] = lambda engine, seen: None

    def refer(self, see: Callable[[Engine, Seen], None]) -> None:
        """Set the function that shows an engine the reference data of a version."""
        self._see = see

    def expect(self, logs: Mapping[str, MemoryLog], effects: Sequence[EffectCall]) -> None:
        """Set what the comparison expects: the outputs of this partition by topic, and its effects."""
        self._outputs = {topic: [*filter(None, map(self._own, log.committed()))] for topic, log in logs.items()}
        self._effects = list(dict.fromkeys(call.key for call in effects if call.key[1] == self._partition))

    def expect_rows(self, tables: Tables) -> None:
        """Set the expected rows of the sinks. Only for a driver with one partition: all write to the same tables."""
        self._rows = tables

    def decide(self, decisions: dict[At, FailureDecision]) -> None:
        """Set the recorded failure decisions: a replay makes none of its own."""
        self._decisions = decisions

    def run(self, sizes: Sequence[int]) -> None:
        """:raises BatchesMatter: something differs. :raises RecordError: the handler fails on a record."""
        engine = self._engine()
        if self._decisions:
            engine.open_dead_letters().decisions = dict(self._decisions)
        outputs: dict[str, list[_Sent]] = {topic: [] for topic in self._outputs}
        effects: list[object] = []
        rows: Tables = {}
        for batch in in_order(self._batches(sizes), self._pinned):
            self._handle(engine, batch)
            for topic, value, key, partition, _, _, _, headers in engine.take_outputs():
                blob = key.encode() if isinstance(key, str) else key
                if topic in outputs:  # the others are dead letters
                    outputs[topic].append((value, blob, tuple(headers or ()), partition))
            effects += [effect.key for effect in engine.effects.take()]
            for each in ((engine.sinks and engine.sinks.take()) or list)():
                apply(rows.setdefault(each.table, {}), each)
            engine.state.commit(engine.freeze(), delta=True)
        self._compare(sizes, engine, outputs, effects)
        if self._rows is not None and rows != self._rows:
            self._differs(sizes, f"the sinks hold {rows}, they held {self._rows}")

    def _batches(self, sizes: Sequence[int]) -> Iterator[Sequence[Message]]:
        at, size = 0, cycle(sizes)
        while at < len(self._messages):
            yield self._messages[at : (at := at + max(1, next(size)))]

    def _handle(self, engine: Engine, batch: Sequence[Message] | Pinned | HandledRetry | Seen) -> None:
        """Handle a batch as the worker does: record by record if on_batch raises."""
        try:
            if isinstance(batch, Pinned):
                engine.obey(PinnedMessage(self._control, self._partition, batch))
                return
            if isinstance(batch, HandledRetry):
                handle(engine, *batch)
                return
            if isinstance(batch, Seen):
                self._see(engine, batch)
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

    def _compare(
        self, sizes: Sequence[int], engine: Engine, outputs: dict[str, list[_Sent]], effects: list[object]
    ) -> None:
        for topic, sent in outputs.items():
            for i, (now, before) in enumerate(zip_longest(sent, self._outputs[topic])):
                if now != before:
                    self._differs(sizes, f"output {i} of {topic!r} is {now}, it was {before}")
        if effects != self._effects:
            self._differs(sizes, f"the effects are {effects}, they were {self._effects}")
        if digest.to_bytes(engine.state.digest) != self._digest:
            self._differs(sizes, f"the tables differ: {self._difference(engine.state.tables)}")

    def _difference(self, tables: Mapping[str, PartitionTable[Any, Any]]) -> str:
        """Return the first key whose value differs, with both values."""
        for name, table in tables.items():
            now, before = table.stored, self._tables[name].stored
            for key in dict.fromkeys((*before, *now)):
                if now.get(key) != before.get(key):
                    is_now, was = (_shown(table, each.get(key)) for each in (now, before))
                    return f"table {name!r}, key {key!r}: the value is {is_now}, it was {was}"
        return "no key does, so the digests were computed differently"

    def _own(self, message: MemoryMessage) -> _Sent | None:
        headers = tuple(message.headers() or ())
        for name, data in headers:
            if name == ORIGIN_HEADER and ORIGIN.unpack_from(data)[0] != self._partition:
                return None
        mine = tuple(header for header in headers if header[0] != ORIGIN_HEADER)
        return message.value(), message.key(), mine, message.partition()

    def _differs(self, sizes: Sequence[int], finding: str) -> None:
        raise BatchesMatter(
            f"with batches of {list(sizes)} records: {finding}. How records are cut into batches must not matter, nor "
            f"anything but the records and the tables: a replay would give another state"
        )


def _shown(table: PartitionTable[Any, Any], data: bytes | None) -> str:
    return "absent" if data is None else f"{table.decode(data)!r:.200}"
