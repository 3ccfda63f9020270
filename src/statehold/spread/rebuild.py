"""`statehold rebuild --spark-master`: executors rebuild the partitions, and the driver receives the reports.

Next to the running service each round ends with a full snapshot of each partition, which no commit record names. The
next round, on whichever executor, continues from it. The last one writes the states that replace those of the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

import msgspec

from statehold.admin.inspection.topic_view import topic_view
from statehold.admin.state.stopped_service import StoppedService
from statehold.api.handler import HandlerFactory
from statehold.errors import ToolRefused
from statehold.rebuild.adoption import adoption_of
from statehold.rebuild.kept_transactions import TOOL
from statehold.rebuild.partition import PartitionOutOfMemory
from statehold.rebuild.rebuild import Rebuild, RebuildOptions, Show, Tell
from statehold.rebuild.report import RebuildReport, RebuiltState
from statehold.rehearsal.source import LiveTopics
from statehold.shadow.source import ShadowSource
from statehold.snapshot import state_replacement
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.state_replacement import Adoption
from statehold.spread.partitions import ReleaseCode, each_partition, handler_of
from statehold.state.state import State

_WHAT = "rebuild the state"


class StoredPartition(NamedTuple):
    """A rebuilt partition whose state is a full snapshot on the snapshot topic, or in the store."""

    left: PartitionOutOfMemory
    #: None: the state is empty
    full: FullRef | None
    #: the commit boundary of that full snapshot
    at: CommitRecord

    @property
    def position(self) -> int:
        return sum(self.left.positions[topic] for topic in self.at.positions)


class SpreadRebuild(Rebuild):
    """The driver's side. Used by one thread; `close` it at the end."""

    def __init__(
        self,
        spark: Session,
        source: ShadowSource,
        factory: HandlerFactory,
        code: ReleaseCode,
        options: RebuildOptions,
        tell: Tell = lambda line: None,
    ) -> None:
        """`code` names the same handler as `factory`. :raises UsageError: past records cannot be given to it."""
        options = options._replace(spools=False, spool_dir=None)
        super().__init__(source, factory, options, code.settings, tell)
        self._spark, self._release, self._given = spark, code, options
        self._stored: dict[int, StoredPartition] = {}

    def shown(self, show: Show = lambda found: None) -> RebuildReport:
        self.require_input()
        found = each_partition(self._spark, _WHAT, _Shown(self._release, self._given), range(self.partitions))
        for each in found:
            show(each)
        return RebuildReport(self.since, found)

    def behind(self) -> int:
        places = [self._source.place(each) for each in self._stored]
        ends = sum(self._end(self.last_commit(place), place) for place in places)
        return ends - sum(each.position for each in self._stored.values())

    def replacements(
        self, stopped: StoppedService, last: Sequence[CommitRecord], lineage: str, show: Show
    ) -> Iterator[tuple[Adoption, RebuiltState]]:
        work = _Finished(self._release, self._given, self._stored, last, lineage)
        for adoption, report in each_partition(self._spark, _WHAT, work, range(self.partitions)):
            show(report)
            yield adoption, report

    def _round(self) -> None:
        work = _Advanced(self._release, self._given, self._stored)
        found = each_partition(self._spark, _WHAT, work, range(self.partitions))
        self._stored = dict(enumerate(found))
        self._tell(
            f"{self.partitions} partition(s) rebuilt up to transactions {', '.join(str(e.left.n) for e in found)}"
        )

    def _rate(self) -> float:
        progress = [each.left.progress for each in self._stored.values()]
        seconds = sum(each.seconds for each in progress)
        slots = min(self.partitions, self._spark.sparkContext.defaultParallelism)
        return slots * sum(each.report.records for each in progress) / seconds if seconds else 0.0


class _Task:
    """Rebuilds one partition on an executor."""

    def __init__(self, code: ReleaseCode, options: RebuildOptions, stored: Mapping[int, StoredPartition]) -> None:
        self._code, self._options, self._stored = code, options, stored

    @contextmanager
    def _opened(self) -> Iterator[tuple[Rebuild, StoppedService]]:
        code = self._code
        factory = handler_of(code.target)
        with (
            topic_view(code.settings, code.names) as view,
            closing(Rebuild(LiveTopics(view), factory, self._options, code.settings)) as work,
            closing(StoppedService(code.settings, code.names, factory, TOOL)) as stopped,
        ):
            yield work, stopped

    def _resume(self, work: Rebuild, stopped: StoppedService, partition: int) -> None:
        """Have `work` continue with the stored state, if there is one and the service has not truncated it."""
        stored = self._stored.get(partition)
        if stored is None:
            return
        place = stopped.place(partition, stored.at.partitions, stopped.facts())

        def fill(state: State) -> None:
            if stored.full is not None:
                with closing(stopped.reader()) as reader:
                    stopped.read_full(reader, place, stored.full, stored.at, state)

        with suppress(ToolRefused):  # then it begins at the start
            work.resume(partition, stored.left, fill)


class _Shown(_Task):
    def __init__(self, code: ReleaseCode, options: RebuildOptions) -> None:
        super().__init__(code, options, {})

    def __call__(self, partition: int) -> RebuiltState:
        with self._opened() as (work, _):
            return work.shown_one(partition)


class _Advanced(_Task):
    def __call__(self, partition: int) -> StoredPartition:
        with self._opened() as (work, stopped):
            self._resume(work, stopped, partition)
            with work.turn(partition, ends=True) as made:
                last = work.last_commit(made.place)
                made.advance(last.n)
                place = stopped.place(partition, last.partitions, stopped.facts())
                inputs = {topic: made.positions[topic] for topic in stopped.names.inputs}
                lineage = state_replacement.new_lineage()
                full, at = stopped.write_full(
                    place, lineage, made.n + 1, inputs, made.state, made.recorded(last, place)
                )
                return StoredPartition(made.leave_memory(), full, at)


class _Finished(_Task):
    def __init__(
        self,
        code: ReleaseCode,
        options: RebuildOptions,
        stored: Mapping[int, StoredPartition],
        last: Sequence[CommitRecord],
        lineage: str,
    ) -> None:
        super().__init__(code, options, stored)
        self._commit_records, self._lineage = last, lineage

    def __call__(self, partition: int) -> tuple[Adoption, RebuiltState]:
        last = self._commit_records[partition]
        with self._opened() as (work, stopped):
            self._resume(work, stopped, partition)
            with work.turn(partition, ends=True) as made:
                made.place.check(last)
                work.finish(made, last, work.present(made))
                adoption = adoption_of(stopped, made, last, self._lineage)
                return msgspec.structs.replace(adoption, retries={}), made.report
