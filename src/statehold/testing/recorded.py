"""Read one partition's past from the topics in memory, to handle its whole input again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.bound.reference import Version
from statehold.common.names import Names
from statehold.messages.dead_letter import DeadLetter, Resolution, read
from statehold.messages.pinned_command import Pinned, Placed, TimeLimit
from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.format.side_inputs import placed
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryReader, StableMemoryReader
from statehold.testing.rerun import Seen
from statehold.worker.failures.history import At, HandledRetry, RetryHistory
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.handler.engine import Engine
from statehold.worker.inputs.recorded_order import RecordedOrder
from statehold.worker.replicas.reference import history


class PastReader(MemoryReader):
    """Reads from the beginning, also what was deleted, such as handled records of a `Rekey`."""

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        yield [each for each in self._broker.log(topic, partition).past(end) if (each.offset() or 0) >= start]


class Recorded:
    """The committed past of one partition at the time of construction."""

    def __init__(self, kind: type[Handler[Any]], names: Names, broker: MemoryBroker, partition: int) -> None:
        self._names, self._broker, self._partition = names, broker, partition
        self._tried = RetryHistory(kind, names)
        for topic in self._tried.topics:
            mine = (each for each in broker.log(topic, 0).committed() if each.partition() == partition)
            self._tried.add(topic, mine)

    def messages(self, last: CommitRecord) -> Sequence[Message]:
        """Return the handled records of all inputs in their order; `last`: the last commit record."""
        names, partition, broker = self._names, self._partition, self._broker
        if not names.others:
            return list(broker.log(names.input, partition).committed(0, last.position(names.input)))
        place = Place(names, partition, last.partitions, last.topic_ids)
        readers = [PastReader(broker, lambda: False) for _ in names.inputs]
        order = RecordedOrder(readers, place, dict.fromkeys(names.inputs, 0), last.positions)
        written = (records.unpack(message.value()) for message in broker.log(names.changelog, partition).past())
        recorded = [record.runs for record in written if isinstance(record, CommitRecord)]
        return list(chain.from_iterable(order.batches(recorded)))

    def side_inputs(self) -> list[Placed[Pinned | HandledRetry | TimeLimit | Seen]]:
        """Return side inputs, time limits and versions of reference data, each at its place in the input."""
        names = self._names
        changelog = self._broker.log(names.changelog, self._partition)
        written = (records.unpack(message.value()) for message in changelog.past())
        found: list[Placed[Pinned | HandledRetry | TimeLimit | Seen]] = []
        before: Mapping[str, int] = {}
        seen: Mapping[str, Version] = {}
        for commit_record in (record for record in written if isinstance(record, CommitRecord)):
            if commit_record.reference != seen:
                seen = commit_record.reference
                found.append(Placed(commit_record.start, Seen(seen)))
            handled: list[Pinned | HandledRetry] = [
                *commit_record.pinned,
                *self._tried.between(before, commit_record.positions),
            ]
            found += placed(commit_record, names.input, handled)
            before = commit_record.positions
        return found

    def dead_letters(self) -> list[DeadLetter | Resolution | None]:
        """Return the dead letters and their resolutions, in the order of the topic."""
        log = self._broker.log(self._names.dead, 0)
        return [read(message) for message in log.committed() if message.partition() == self._partition]

    def decisions(self) -> dict[At, FailureDecision]:
        """Return the failure decisions by topic and offset."""
        return self._tried.decisions(self.dead_letters(), self._names.control)

    def see(self, engine: Engine, seen: Seen) -> None:
        """Show an engine the reference data of that version."""
        reader = StableMemoryReader(self._broker, lambda: False)
        for each in engine.references.values():
            version = seen.versions[each.topic]
            each.go_back(history(reader, each, version), version)
