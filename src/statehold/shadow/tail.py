"""Reads what a running service commits, some transactions at a time, with their records and their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from statehold.api.handler import Handler
from statehold.ports import Clock
from statehold.rehearsal.comparison import LiveResults
from statehold.rehearsal.failing import NewFailures
from statehold.rehearsal.live_outputs import LiveOutputs
from statehold.rehearsal.new_code import LiveTransaction
from statehold.shadow.handled import HandledTransactions
from statehold.shadow.source import ShadowReaders, ShadowSource
from statehold.snapshot.format.chain_check import Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect.past import PastState

#: seconds after which outputs that an open transaction of another producer hides are passed over
HIDDEN: Final = 60.0


class StateReplaced(Exception):
    """A tool replaced the state, so that the shadow has to start again."""

    def __init__(self, n: int, tool: str) -> None:
        super().__init__(f"{tool} replaced the state in transaction {n}")


@dataclass(slots=True)
class _Waiting:
    """Outputs that are committed and not readable yet: each partition of a topic gets its own commit marker."""

    #: the last transaction that is waited for, and the ends of the output topics after it had committed
    through: int
    written: Mapping[tuple[str, int], int]
    since: float


class Tail(HandledTransactions):
    """The transactions of one partition after a state, with their outputs. Used by one thread."""

    def __init__(
        self,
        source: ShadowSource,
        readers: ShadowReaders,
        place: Place,
        kind: type[Handler[Any]],
        state: PastState,
        topics: Mapping[str, int],
        failures: NewFailures,
        clock: Clock,
    ) -> None:
        """`topics`: those that the new code writes to, with their number of partitions."""
        super().__init__(readers, place, kind, state, topics, failures)
        self._source, self._clock = source, clock
        existing = {topic: count for topic, count in topics.items() if count}
        self._outputs = LiveOutputs(readers.outputs, place.partition, state.n, existing)
        self._waiting: _Waiting | None = None
        #: up to these transactions all outputs were read, or passed over because they are hidden
        self._settled = self._hidden = state.n

    @property
    def waits(self) -> bool:
        """Whether the outputs of a transaction are not readable yet."""
        return self._waiting is not None

    def read(self, end: int) -> list[tuple[LiveResults, LiveTransaction]]:
        """Return the next transactions; nothing if the changelog has no more, or if their outputs are not readable yet.

        `end`: of the changelog. Changes nothing that a repetition after an error of Kafka would miss.

        :raises StateReplaced: the next one replaces the state. :raises OutOfRange: retention has deleted records.
        """
        self._hold(end)
        if not self._held:
            return []
        replacement = self._held[0].replacement
        if replacement is not None:
            raise StateReplaced(self._held[0].commit_record.n, replacement.tool)
        ready = self._ready()
        if not ready:
            return []
        given = self._given([each.commit_record for each in ready])
        self._held = self._held[len(ready) :]
        return [(self._results(increment), each) for increment, each in zip(ready, given, strict=True)]

    def handled(self, record: CommitRecord) -> None:
        """Note that a transaction is part of the state."""
        super().handled(record)
        self._outputs.passed(record.n)

    # Outputs

    def _ready(self) -> list[Increment]:
        """Return the first transactions whose outputs are readable."""
        held = self._held
        outputs, last = self._outputs, held[-1].commit_record.n
        if any(each.commit_record.outputs for each in held):
            outputs.follow(self._readers.outputs)
            outputs.load(last)
        if self._waiting is not None and outputs.reaches(self._waiting.written):
            self._settled, self._waiting = self._waiting.through, None
        elif self._waiting is not None and self._clock() - self._waiting.since >= HIDDEN:
            self._settled = self._hidden = self._waiting.through
            self._waiting = None
        for i, increment in enumerate(held):
            record = increment.commit_record
            if record.n > self._settled and outputs.count(record.n) < record.outputs:
                if self._waiting is None:
                    written = {place: self._source.written(*place) for place in outputs.places}
                    self._waiting = _Waiting(last, written, self._clock())
                return held[:i]
        self._waiting = None
        return list(held)

    def _results(self, increment: Increment) -> LiveResults:
        n, outputs = increment.commit_record.n, self._outputs
        unknown = outputs.nameless or outputs.may_be_deleted(n) or n <= self._hidden
        sent = outputs.of(n) if increment.commit_record.outputs else []  # those without are not read
        return LiveResults(increment, sent, unknown)
