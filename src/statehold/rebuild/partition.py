"""One partition of a rebuild: the new code with its tables, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from statehold.admin.state.spool import Spool
from statehold.api.handler import Handler, HandlerFactory
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.ports import OutOfRange
from statehold.rebuild.beginning import (
    StartingState,
    empty_state,
    missing_input,
    require_input,
    require_order_of_input,
)
from statehold.rebuild.failures import NO_FAILURES, OpenFailures, RebuildFailures
from statehold.rebuild.kept_transactions import KeptTransactions
from statehold.rebuild.report import RebuiltState
from statehold.rehearsal.new_code import LiveTransaction, NewCode
from statehold.rehearsal.rehearse import engine_at, new_engine, takes_over
from statehold.shadow.handled import ChangelogTruncated
from statehold.shadow.source import ShadowReaders
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import PastState
from statehold.state.partition_table import Changes
from statehold.state.state import State
from statehold.state.types.description import to_text
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.pending_effects import require_effects

#: entries of one piece of a spool
_PIECE: Final = 10_000


class NewRelease(NamedTuple):
    """The code that rebuilds the state."""

    factory: HandlerFactory
    kind: type[Handler[Any]]
    settings: Settings
    #: topics that it writes to, with their number of partitions
    topics: Mapping[str, int]


@dataclass
class RebuildProgress:
    """What belongs to a partition besides its state; it can be pickled."""

    #: position at which it began, and what the user wrote for it
    start: int
    since: str
    #: see `StartingState`
    recorded_from: int
    recorded_at: int
    #: has the versions and types of the values with which it began
    began: CommitRecord
    began_tables: frozenset[str]
    #: next offsets of the topics at the start
    began_at: Mapping[str, int]
    report: RebuiltState
    #: seconds of `RebuiltPartition.advance`
    seconds: float = 0.0


class PartitionOutOfMemory(NamedTuple):
    """A rebuilt partition whose state is stored elsewhere; it can be pickled."""

    progress: RebuildProgress
    #: the last transaction that the state holds, and the next offsets after it
    n: int
    positions: Mapping[str, int]
    lineage: str
    failures: OpenFailures


class RebuiltPartition:
    """Used by one thread. It reads, and writes nothing anywhere."""

    def __init__(
        self,
        code: NewRelease,
        readers: ShadowReaders,
        place: Place,
        start: PastState,
        engine: Engine,
        progress: RebuildProgress,
        tell: Callable[[RebuiltPartition], object],
        failures: OpenFailures = NO_FAILURES,
    ) -> None:
        """`engine`: has the state `start`, which is of the beginning, or of the last transaction that it holds."""
        self._code, self._readers, self.place, self._tell = code, readers, place, tell
        self.progress, self.report, self.start = progress, progress.report, progress.start
        self._engine: Engine | None = engine
        self.failures = RebuildFailures(engine, place, failures)
        self._kept = KeptTransactions(readers, place, code.kind, start, code.topics, self.failures)
        self._kept.notes = self.report.notes
        self._new = self._muted(engine)

    @classmethod
    def begun(
        cls,
        code: NewRelease,
        readers: ShadowReaders,
        place: Place,
        start: StartingState,
        last: CommitRecord,
        since: str,
        tell: Callable[[RebuiltPartition], object],
    ) -> RebuiltPartition:
        """Return a partition at its start. `last`: the last commit record, whose pending effects stay pending.

        :raises RetentionGap: input after the start is gone. :raises ToolRefused: the new code cannot take the state.
        """
        state, report = start.state, RebuiltState(place.partition, notes=list(start.notes))
        began = msgspec.structs.replace(last, schemas=dict(state.schemas), types=dict(state.types))
        tables = frozenset(name for name, held in state.contents.tables.items() if held)
        require_input(place, missing_input(readers.inputs[0], place, start), since)
        takes_over(place, code.kind, began, report)
        engine = engine_at(state, code.factory, place, code.topics, code.settings, last, report)
        if report.unreadable:
            raise ToolRefused(
                f"{place.input}[{place.partition}]@{state.position}: rebuild with the new code: "
                f"{'; '.join(report.unreadable)}. Nothing was changed. Next: --from beginning reads no stored "
                f"value, or give the table a version and an upcaster"
            )
        progress = RebuildProgress(
            state.position, since, start.recorded_from, start.recorded_at, began, tables, dict(state.positions), report
        )
        return cls(code, readers, place, state, engine, progress, tell)

    @classmethod
    def continued(
        cls,
        code: NewRelease,
        readers: ShadowReaders,
        place: Place,
        left: PartitionOutOfMemory,
        fill: Callable[[State], object],
        tell: Callable[[RebuiltPartition], object],
    ) -> RebuiltPartition:
        """Return a partition with the state that `fill` puts into empty tables."""
        engine = new_engine(code.factory, place, code.topics, code.settings)
        fill(engine.state)
        state = empty_state(place, left.n, left.positions, left.lineage)
        return cls(code, readers, place, state, engine, left.progress, tell, left.failures)

    def leave_memory(self) -> PartitionOutOfMemory:
        """Return what `continued` needs besides the state, which the caller has stored. It is not used afterwards."""
        progress, opened = self.progress, self.failures.opened()
        return PartitionOutOfMemory(progress, self.n, dict(self.positions), self._kept.lineage, opened)

    @property
    def seconds(self) -> float:
        return self.progress.seconds

    @property
    def in_memory(self) -> bool:
        return self._engine is not None

    @property
    def state(self) -> State:
        assert self._engine is not None
        return self._engine.state

    @property
    def n(self) -> int:
        """The last transaction that it holds."""
        return self._kept.n

    @property
    def positions(self) -> Mapping[str, int]:
        return self._kept.positions

    @property
    def position(self) -> int:
        return sum(self._kept.positions[topic] for topic in self.place.names.inputs)

    def require_effects(self, last: CommitRecord) -> None:
        """:raises UnknownEffect: the new code cannot call an effect that is pending at this commit record."""
        assert self._engine is not None
        require_effects(self._engine.handler, self.place, last)

    def advance(self, through: int) -> None:
        """Handle the records that the service has committed, up to this transaction.

        :raises ToolRefused: the new code fails at a record, or a tool moved a position.
        :raises RetentionGap: retention has deleted records meanwhile.
        """
        began = time.perf_counter()
        try:
            while self.n < through:
                self._handle_unrecorded()
                try:
                    self._handle_recorded(through)
                    break
                except ChangelogTruncated:  # the service was faster; the input still has the records
                    self._skip()
        except OutOfRange as error:
            require_input(self.place, [str(error)], self.progress.since)
        finally:
            self.progress.seconds += time.perf_counter() - began
        self.report.to_n, self.report.end = self.n, self.position

    def _handle_unrecorded(self) -> None:
        """Handle the records before the first commit record that is kept; the service has committed all of them."""
        place, low, high = self.place, self.position, self.progress.recorded_from
        if low >= high:
            return
        self._kept.recall()
        for batch in self._readers.inputs[0].read(place.input, place.partition, low, high):
            self._take(LiveTransaction(0, batch, [], [], self._time_limit()))
            self._kept.begin_at((batch[-1].offset() or 0) + 1)
        self._kept.begin_at(high)

    def _time_limit(self) -> int:
        """Return how far records may advance event time, because their own commit records are gone; 0: any time."""
        allowed = self._code.settings.time.max_ahead
        recorded_at = self.progress.recorded_at
        return 0 if allowed == "off" or not recorded_at else recorded_at + int(allowed * 1000)

    def _skip(self) -> None:
        """Continue before the first transaction that the changelog still has."""
        with closing(past.increments(self._readers.changelog, self.place)) as increments:
            first = next(increments).commit_record
        note = require_order_of_input(self.place, self._code.kind, first, self._kept.positions)
        self.report.notes.append(f"{note}; the service truncated it meanwhile")
        self.progress.recorded_from, self.progress.recorded_at = max(self.position, first.start), first.time
        self._kept.skip_to(first.n)

    def _handle_recorded(self, through: int) -> None:
        end = self._readers.changelog.bounds(self.place.names.changelog, self.place.partition)[1]
        while self.n < through and self._kept.behind(end):
            for record, given in self._kept.read(end, through):
                self._take(given)
                self._kept.handled(record)

    def _take(self, given: LiveTransaction) -> None:
        new, failures = self._new, self.failures
        given = given._replace(pinned=[failures.adapted(each) for each in given.pinned])
        done = new.at_once(given)
        if done is None:
            results = new.one_by_one(given, _nothing)
        else:
            results, frozen = done
            new.commit(frozen)
        if results.failed:
            failure = results.failed[0]
            raise ToolRefused(
                f"{failure.record}: rebuild the state: the new code fails at this record, and its on_failure has no "
                f"policy for it: {failure.error}. Nothing was changed. Next: fix the code, then run the command again"
            ) from failure.error
        failures.sent(results.sent)
        failures.handled(given.retries)
        self.report.records += len(given.messages)
        self.report.transactions += 1
        self.report.handler_seconds = new.seconds
        self._tell(self)

    def recorded(self, last: CommitRecord, place: Place) -> CommitRecord:
        """Return `last` with the versions and types of the values in the rebuilt state. `place`: with the new tables.

        Values with which it began may have older ones; all others the new code has written.
        """
        used, progress = self.state.used, self.progress
        fresh = {name: to_text(types) for name, types in place.types.items() if name not in progress.began_tables}
        types = {name: text for name, text in {**fresh, **progress.began.types}.items() if name in used}
        began = msgspec.structs.replace(last, schemas=progress.began.schemas, types=types)
        return msgspec.structs.replace(began, schemas=place.merged_schemas(began, used))

    # Out of memory for a time

    def park(self, spool: Spool) -> None:
        """Move the state to the spool."""
        partition = self.place.partition
        spool.clear(partition)
        for name, table in self.state.tables.items():
            keys = list(table.stored)
            for low in range(0, len(keys), _PIECE):
                piece = keys[low : low + _PIECE]
                spool.add(partition, Changes(name, piece, [table.stored[key] for key in piece]))
        self.drop()

    def drop(self) -> None:
        """Free the memory of the state."""
        self._engine = None
        self.failures.leave_engine()
        del self._new

    def unpark(self, spool: Spool) -> None:
        """Move the state back."""
        code = self._code
        engine = self._engine = new_engine(code.factory, self.place, code.topics, code.settings)
        spool.load(self.place.partition, engine.state)
        self.failures.continue_with(engine)
        self._new = self._muted(engine)

    def _muted(self, engine: Engine) -> NewCode:
        """Return the new code without outputs, rows and effects; its dead letters stay in this process."""
        engine.mute(replaying=True)
        if engine.dead_letters is not None:
            engine.dead_letters.muted = False
        new = NewCode(engine, self.failures, self.progress.began_at)
        new.seconds = self.report.handler_seconds
        return new


def _nothing(changes: Sequence[Changes]) -> None:
    """Note nothing about writes."""
