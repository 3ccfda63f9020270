"""A compaction of a driver's topics without Spark: plan, tasks one after the other, verdict, manifest."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

from tests.support import inside

from statehold.ports import FullSink
from statehold.snapshot.format import records
from statehold.snapshot.format.records import COMPACTION, Manifest
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.merge import merge
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport, decode_report, gathered
from statehold.snapshot.spark.fold.sharing import continued, sharing
from statehold.snapshot.spark.io import write as writing
from statehold.snapshot.spark.io.scan import read_stretches, stretches_of
from statehold.snapshot.spark.io.source import base_finding, verdict
from statehold.snapshot.spark.io.write import ChunkWriter, Target, WrittenFull
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store.sink import StoreSink
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink, StableMemoryReader

#: What a task gives: the chunks that it has written, and the reports by kind.
Folded = tuple[WrittenFull, dict[str, TaskReport]]


class CompactedDriver:
    """Compacts partition 0 of a driver. `share` is `snapshot.share`; `root` the store, '' for Kafka."""

    def __init__(self, driver: Driver, share: int, root: str = "", chunk_bytes: int = 4096) -> None:
        self.driver, self.share, self._root, self._chunk_bytes = driver, share, root, chunk_bytes

    def reader(self) -> StableMemoryReader:
        return StableMemoryReader(self.driver.broker, lambda: False)

    def plan(self, damaged: Collection[int] = (), *, share: int | None = None) -> FoldPlan:
        self.driver.commit()
        plan = planning.make(self.reader(), inside.place(self.driver), damaged=damaged)
        return sharing(self.reader(), plan, self.share if share is None else share, self._root)

    def fold(self, plan: FoldPlan, sink_of: Callable[[int], FullSink] | None = None) -> Folded:
        """Run the tasks, which write the chunks."""
        newest = max((full.offset for full in plan.full_snapshots), default=-1)
        target = Target(newest, plan.goal.commit_record.format, self._chunk_bytes, continued(plan))
        blocks = chain.from_iterable(read_stretches(self.reader, task) for task in stretches_of(plan))
        rows = merge(blocks, {0} if plan.shares else ())
        written, reports = writing.empty(0), list[TaskReport]()
        for kind, payload in ChunkWriter({0: target}, sink_of or self.sink, self.reader)(rows):
            if kind == "full":
                written = writing.decode_written(payload)
            else:
                reports.append(decode_report(payload))
        return written, gathered(reports)[0]

    def sink(self, _partition: int) -> FullSink:
        names = self.driver.names
        topic = MemoryFullSink(self.driver.broker, names.snapshot, 0)
        if not self._root:
            return topic
        return StoreSink(open_store(self._root), self._root, f"{names.group}.{names.input}/0", topic, 300)

    def finding(self, plan: FoldPlan, folded: Folded) -> str:
        """Why this must not be published; '' if it may."""
        written, reports = folded
        return base_finding(plan, reports) or written.finding or verdict(plan, reports, written.digest_sums())

    def publish(self, plan: FoldPlan, folded: Folded) -> LocatedManifest:
        written, reports = folded
        assert self.finding(plan, folded) == ""
        manifest = written.manifest(
            plan.place,
            plan.goal.commit_record,
            reports["increments"].header,
            COMPACTION,
            0.0,
            plan.base if plan.shares else None,
        )
        data = records.pack(manifest, manifest.format)
        return LocatedManifest(self.driver.broker.log(self.driver.names.snapshot, 0).append(data), manifest)

    def run(self, **how: Any) -> Manifest:
        """Plan, fold and publish. Return the manifest."""
        plan = self.plan(**how)
        return self.publish(plan, self.fold(plan)).manifest
