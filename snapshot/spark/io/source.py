"""`Fold`: the states of some partitions, which Spark's executors read, merge and verify.

Two stages: tasks read stretches of the topics (`scan`), then one task for each partition, or for some of its buckets,
merges what they have read (`merge`). The bytes travel through Spark's shuffle, and never through the driver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statehold.errors import DamagedIncrement, KafkaTrouble
from statehold.snapshot.spark.fold.merge import Rows, merge, summed
from statehold.snapshot.spark.fold.newest import BUCKETS, REPORT, KeyBlock, packed, unpacked
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.proof import Sums, proves
from statehold.snapshot.spark.fold.report import TaskReport, decode_report, gathered, judge_chunks
from statehold.snapshot.spark.io.scan import ReaderOf, forget_pandas, forget_zip_finders, read_stretches, stretches_of
from statehold.state.digest import from_bytes, to_bytes

#: For modules that must not import pyspark.
Session = SparkSession
#: Columns of a state: keys are msgpack, values as stored.
STATE: Final = "partition int, table string, key binary, value binary"
_PACKED: Final = "partition int, data binary"
#: Keys in one Arrow batch of a state.
_BATCH: Final = 10_000


#: errors of a read that may succeed when it is repeated, as the executor's traceback names them
_READING: Final = re.compile(r"statehold\.errors\.(KafkaTrouble|RestoreTimeout|HangingTransaction)\b|StoreTrouble\b")


#: The Java of the extra `dev` runs brokers, but lacks a module that Spark asks for.
_NO_JAVA: Final = (
    "Spark: its Java ended at once: Spark needs Java 17 or later with all modules (JAVA_HOME, or `java` on the path). "
    "Nothing was changed. Next: apt-get install default-jre-headless"
)


class JobFailed(KafkaTrouble):
    """A Spark job failed; run it again. `reading`: it could not read its input, so another attempt may succeed."""

    def __init__(self, text: str, *, reading: bool = False) -> None:
        super().__init__(text)
        self.reading = reading


def collect(frame: RDD[Any] | DataFrame) -> list[Any]:
    """Run the job and return its rows, which must be few.

    :raises JobFailed: the text has the innermost cause, which Spark's stack trace hides.
    """
    try:
        return list(frame.collect())
    except (PySparkException, Py4JError) as error:
        raise failed_job(error) from error


def failed_job(error: Exception) -> JobFailed:
    """Return the error to raise for a failed job: it has the innermost cause."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return JobFailed(_NO_JAVA)
    return JobFailed(f"the Spark job failed: {cause_of(text)}", reading=_READING.search(text) is not None)


def cause_of(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [
        line for line in lines if line.startswith(("Caused by:", "statehold.", "msgspec.", "ModuleNotFoundError"))
    ]
    return (causes or lines or ["no cause was reported"])[-1 if causes else 0][:500]


class Fold:
    """The states of some partitions, each at its plan's goal. Spark computes them when `rows` are used."""

    def __init__(self, spark: SparkSession, reader_of: ReaderOf, plans: Sequence[FoldPlan]) -> None:
        self._spark, self._reader_of = spark, reader_of
        self.plans = {plan.partition: plan for plan in plans}
        #: The partition of each task of `rows`.
        self.partitions = sorted(self.plans)

    @cached_property
    def rows(self) -> RDD[Rows]:
        """Return `merge.Rows`, including the reports: one task for each partition, in the order of `partitions`."""
        return self._merged(1)

    @contextmanager
    def kept(self) -> Iterator[RDD[Rows]]:
        """Return `rows` that are kept on the executors' disks within the context, for repeated use.

        As many tasks as use the whole cluster share a partition.
        """
        rows = self._merged(pieces(self._spark, len(self.plans))).persist(StorageLevel.DISK_ONLY)
        try:
            yield rows
        finally:
            with suppress(PySparkException, Py4JError):  # the session's end removes the files, too
                rows.unpersist(blocking=True)

    def state(self, rows: RDD[Rows], table: str) -> DataFrame:
        """Return the keys of one table as `STATE`."""
        found = self._spark.createDataFrame(rows.flatMap(partial(_packed, table)), _PACKED, verifySchema=False)
        return found.mapInArrow(_unpacked, STATE)

    def check(self, rows: RDD[Rows] | None = None) -> tuple[dict[int, str], dict[str, int]]:
        """Fold, and compare with the commit records' digests: partition -> the difference, '' without one.

        Also return the number of keys of each table. The driver receives only sums and reports.

        :raises JobFailed: the records were truncated meanwhile.
        :raises DamagedIncrement: a record batch of the changelog is damaged on the broker's disk.
        """
        sums: dict[int, dict[str, Sums]] = {}
        reports: list[TaskReport] = []
        for partition, table, found, report in collect((rows or self.rows).mapPartitions(summed)):
            if table == REPORT:
                reports.append(decode_report(report))
            else:
                sums.setdefault(partition, {}).setdefault(table, Sums()).join(found)
        by_partition = gathered(reports)
        for kinds in by_partition.values():
            for each in kinds.values():
                if each.overtaken:
                    raise JobFailed(each.finding, reading=True)
                if each.damaged and each.kind == "increments":
                    raise DamagedIncrement(each.finding)
        held: dict[str, int] = {}
        for table, found in chain.from_iterable(each.items() for each in sums.values()):
            held[table] = held.get(table, 0) + found.keys
        return {p: verdict(plan, by_partition.get(p, {}), sums.get(p, {})) for p, plan in self.plans.items()}, held

    def _merged(self, share: int) -> RDD[Rows]:
        context = self._spark.sparkContext
        tasks = [task for plan in self.plans.values() for task in stretches_of(plan)]
        places = {partition: index * share for index, partition in enumerate(self.partitions)}
        blocks: RDD[Any] = context.parallelize(tasks, max(1, len(tasks))).mapPartitions(
            partial(_read, self._reader_of, places, share)
        )
        changes = frozenset(plan.partition for plan in self.plans.values() if plan.shares)
        merged = partial(merge, changes=changes)
        return blocks.partitionBy(max(1, share * len(places)), int).values().mapPartitions(merged)


def _read(
    reader_of: ReaderOf, places: Mapping[int, int], share: int, tasks: Iterable[Any]
) -> Iterator[tuple[int, KeyBlock]]:
    """Yield each block with the number of the task that merges it. Every such task gets the reports with findings."""
    forget_zip_finders()
    forget_pandas()
    for stretches in tasks:
        for block in read_stretches(reader_of, stretches):
            first = places[block.partition]
            if block.bucket >= 0:
                yield first + block.bucket * share // BUCKETS, block
            elif share > 1 and decode_report(block.data).finding:
                yield from ((first + each, block) for each in range(share))
            else:
                yield first, block


def _packed(table: str, rows: Rows) -> Iterator[tuple[int, bytearray]]:
    partition, name, keys, values = rows
    if name == table:
        yield partition, bytearray(packed(name, (pa.array(keys, pa.binary()), pa.array(values, pa.binary()))))


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for partition, data in zip(*(batch.column(name).to_pylist() for name in ("partition", "data")), strict=True):
            table, (keys, values) = unpacked(data)
            for low in range(0, len(keys), _BATCH):
                count = min(_BATCH, len(keys) - low)
                columns = [
                    pa.repeat(pa.scalar(partition, pa.int32()), count),
                    pa.repeat(pa.scalar(table, pa.string()), count),
                    keys.slice(low, count),
                    values.slice(low, count),
                ]
                yield pa.record_batch(columns, names=["partition", "table", "key", "value"])


def pieces(spark: SparkSession, partitions: int) -> int:
    """Return the number of stretches per partition that uses the whole cluster."""
    return max(1, math.ceil(spark.sparkContext.defaultParallelism / max(1, partitions)))


def verdict(plan: FoldPlan, reports: Mapping[str, TaskReport], sums: Mapping[str, Sums]) -> str:
    """Return why this is not the state at the plan's goal; '' if it is.

    `sums` of a plan that shares chunks are the differences to those of its base.
    """
    goal = plan.goal.commit_record
    wanted, keys = goal.digest, goal.keys
    if plan.shares and plan.base is not None:
        base = plan.base.manifest
        wanted, keys = to_bytes(from_bytes(wanted) - from_bytes(base.digest)), keys - base.keys
    return unread(plan, reports) or proves(sums, wanted, keys)


def unread(plan: FoldPlan, reports: Mapping[str, TaskReport]) -> str:
    """Return why the tasks have not read what leads to the plan's goal; '' if they have."""
    finding = base_finding(plan, reports)
    if finding:
        return finding
    increments, goal = reports.get("increments"), plan.goal.commit_record
    if increments is not None and increments.finding:
        return increments.finding
    last = increments.last if increments is not None else -1
    if goal.n not in (last, plan.first):
        return f"the changelog ends with transaction {last}, but the state of {goal.n} is requested"
    return ""


def base_finding(plan: FoldPlan, reports: Mapping[str, TaskReport]) -> str:
    """Return the fault of the base, so that the caller tries another one; '' if it is good."""
    if plan.base is None or (plan.shares and "chunks" not in reports):
        return ""  # the base of a plan that shares chunks is read only after the changelog
    finding = judge_chunks(plan.base.manifest, reports.get("chunks"))
    return f"full@{plan.base.offset}: {finding}" if finding else ""
