"""Reads the topics with Spark's Kafka source: only committed records, between planned offsets.

`Fold` computes a state as a DataFrame, and `Fold.check` verifies it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, reduce
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.spark.fold import fold as folding
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.proof import Sums, proves
from statehold.snapshot.spark.fold.report import Cut, Scan, TaskReport, decode_report, gathered, judge_chunks
from statehold.snapshot.spark.fold.unpack import SCHEMA, Unpacker
from statehold.snapshot.spark.io.kafka_options import kafka_options
from statehold.snapshot.spark.io.stored import stored

#: For modules that must not import pyspark.
Session = SparkSession
#: Kafka records in one Arrow batch; few, because chunks are large.
_BATCH: Final = "500"
#: Columns of a folded state.
FOLDED: Final = "partition int, bucket int, table string, key binary, value binary"
Edit = Callable[[Iterable[Any]], Iterable[Any]]
#: (topic, partition) -> first offset, end offset.
Ranges = Mapping[tuple[str, int], tuple[int, int]]


def read(spark: SparkSession, settings: Settings, ranges: Ranges) -> DataFrame:
    """Return Kafka records as (topic, partition, offset, value); there must be ranges, each with start < end.

    One task reads each range in order. The job fails if records were truncated meanwhile.
    """
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _BATCH)
    reader = spark.read.format("kafka")
    for key, value in kafka_options(settings).items():
        reader = reader.option(key, value)
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in ranges.items():
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    assigned = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
    return (
        reader.option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "true")
        .load()
        .select("topic", "partition", "offset", "value")
    )


def with_stored(
    spark: SparkSession, settings: Settings, layers: Sequence[Ranges], fulls: Iterable[tuple[Place, Manifest]]
) -> DataFrame:
    """Return the union of `read` of each layer and the chunks of full snapshots in a store; one of them must exist.

    A layer names a topic partition once, as Spark requires. Several tasks share a partition through several layers.
    """
    frames = [read(spark, settings, ranges) for ranges in layers if ranges]
    elsewhere = stored(spark, settings, fulls)
    return reduce(DataFrame.union, frames if elsewhere is None else [*frames, elsewhere])


#: the Java client's words for a batch whose checksum differs, and those of a record in it
_DAMAGED: Final = re.compile(
    r"Record (?:batch )?for partition (?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+) at offset (?P<offset>\d+) is "
    r"invalid, cause: (?P<cause>[^\n]{1,200})"
)


#: the Java client's or the connector's words for a read from Kafka that failed, or that a truncation overtook
_READING: Final = re.compile(r"org\.apache\.kafka\.|sql\.kafka010|TimeoutException|data may have been lost")


#: The Java of the extra `dev` runs brokers, but lacks a module that Spark asks for.
_NO_JAVA: Final = (
    "Spark: its Java ended at once: Spark needs Java 17 or later with all modules (JAVA_HOME, or `java` on the path). "
    "Nothing was changed. Next: apt-get install openjdk-17-jre-headless"
)


class JobFailed(KafkaTrouble):
    """A Spark job failed; run it again. `reading`: it could not read from Kafka, so another attempt may succeed."""

    def __init__(self, text: str, *, reading: bool = False) -> None:
        super().__init__(text)
        self.reading = reading


class DamagedBatch(JobFailed):
    """A Spark job met a record batch that is damaged on the broker's disk; another attempt does not help."""

    def __init__(self, topic: str, partition: int, offset: int, cause: str) -> None:
        super().__init__(
            f"{topic}[{partition}]@{offset}: a record batch is damaged on the broker's disk: {cause}. Nothing was "
            f"changed. Next: make another replica the leader, whose copy may be whole (kafka-leader-election.sh). If "
            f"no copy is whole and a restore still succeeds, `statehold snapshot take` writes a full snapshot after "
            f"the damage"
        )
        self.topic, self.partition, self.offset = topic, partition, offset

    def in_base(self, plan: FoldPlan) -> bool:
        """Return whether it lies in the full snapshot on which the plan is based, so that an older one may help."""
        base = plan.base
        if base is None or (self.topic, self.partition) != (plan.place.names.snapshot, plan.partition):
            return False
        return base.ref.low <= self.offset <= base.offset


def collect(frame: DataFrame) -> list[Any]:
    """Run the job and return its rows, which must be few.

    :raises JobFailed: the text has the innermost cause, which Spark's stack trace hides.
    """
    try:
        return list(frame.collect())
    except (PySparkException, Py4JError) as error:
        raise failed_job(error) from error


def failed_job(error: Exception) -> JobFailed:
    """Return the error to raise for a failed job: it names a damaged record batch, or has the innermost cause."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return JobFailed(_NO_JAVA)
    damaged = _DAMAGED.search(text)
    if damaged is None:
        return JobFailed(f"the Spark job failed: {cause_of(text)}", reading=_READING.search(text) is not None)
    return DamagedBatch(damaged["topic"], int(damaged["partition"]), int(damaged["offset"]), damaged["cause"])


def cause_of(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [
        line for line in lines if line.startswith(("Caused by:", "statehold.", "msgspec.", "ModuleNotFoundError"))
    ]
    return (causes or lines or ["no cause was reported"])[-1 if causes else 0][:500]


class Fold:
    """The states of some partitions, each at its plan's goal. Spark computes them at the first use."""

    def __init__(self, spark: SparkSession, settings: Settings, plans: Sequence[FoldPlan]) -> None:
        self._spark, self._settings, self.plans = spark, settings, {plan.partition: plan for plan in plans}

    @property
    def state(self) -> DataFrame:
        """(partition, table, key, value): keys are msgpack, values as stored."""
        return self._folded.where(F.col("table") != REPORT).select("partition", "table", "key", "value")

    @property
    def chunks(self) -> DataFrame:
        """`fold.CHUNKS`, including the reports."""
        return folding.chunks(self._folded, self._settings.snapshot.chunk_bytes)

    def having(self, table: str, keys: Sequence[bytes]) -> DataFrame:
        """Return (partition, key) for those of the given msgpack keys that the state holds."""
        mine = (F.col("table") == table) & F.col("key").isin(*map(bytearray, keys))
        return self.state.where(mine).select("partition", "key")

    def edited(self, edit: Edit, born: Sequence[Any] = ()) -> DataFrame:
        """Return `chunks` of the edited state; `edit` runs in `mapInArrow` over `FOLDED`, including reports.

        `born` are rows for new keys, in a bucket of their own.
        """
        rows = self._folded.mapInArrow(edit, FOLDED)
        if born:
            added = self._spark.createDataFrame([*born], FOLDED).coalesce(1)
            rows = rows.union(added.sortWithinPartitions("partition", "bucket", "table", "key"))
        return folding.chunks(rows, self._settings.snapshot.chunk_bytes)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the folded state on the executors' disks within the context, for repeated use."""
        self._folded.persist(StorageLevel.DISK_ONLY)
        try:
            yield
        finally:
            with suppress(PySparkException, Py4JError):  # the session's end removes the files, too
                self._folded.unpersist(blocking=True)

    def check(self) -> dict[int, str]:
        """Fold, and compare with the commit records' digests: partition -> the difference, '' without one.

        Reads everything once. The driver receives only sums and reports.
        """
        return judge(self.plans.values(), collect(folding.sums_of(self.chunks)))

    @cached_property
    def _folded(self) -> DataFrame:
        stretches = [each for plan in self.plans.values() for each in _stretches(plan)]
        deepest = max((number for number, *_ in stretches), default=0)
        layers: list[dict[tuple[str, int], tuple[int, int]]] = [{} for _ in range(deepest + 1)]
        for number, place, bounds in stretches:
            layers[number][place] = bounds
        scans = {plan.partition: scan_of(plan) for plan in self.plans.values()}
        bases = [(plan.place, plan.base.manifest) for plan in self.plans.values() if plan.base]
        frames = with_stored(self._spark, self._settings, layers, bases)
        rows = frames.mapInArrow(Unpacker(scans), SCHEMA)
        return folding.fold(rows, 2 * self._spark.sparkContext.defaultParallelism)


def _stretches(plan: FoldPlan) -> Iterator[tuple[int, tuple[str, int], tuple[int, int]]]:
    """Yield number, (topic, partition) and (first, end offset) of each stretch of a plan."""
    names, base = plan.place.names, plan.base
    starts = [plan.start, *(cut.offset + 1 for cut in plan.cuts)]
    for number, bounds in enumerate(zip(starts, [*starts[1:], plan.end], strict=True)):
        if plan.start < plan.end:
            yield number, (names.changelog, plan.partition), bounds
    if base is not None and base.manifest.checksums and not base.manifest.store:
        starts = [base.manifest.low, *plan.chunk_cuts]
        for number, bounds in enumerate(zip(starts, [*starts[1:], base.offset], strict=True)):
            yield number, (names.snapshot, plan.partition), bounds


def pieces(spark: SparkSession, partitions: int) -> int:
    """Return the number of stretches per partition that uses the whole cluster."""
    return max(1, math.ceil(spark.sparkContext.defaultParallelism / max(1, partitions)))


def scan_of(plan: FoldPlan) -> Scan:
    base = plan.base
    return Scan(
        partition=plan.partition,
        full=base.manifest.full if base else "",
        chunks=len(base.manifest.checksums) if base else 0,
        first=plan.first,
        lineage=plan.goal.commit_record.lineage,
        topic=plan.place.names.changelog,
        cuts=tuple(Cut(each.offset + 1, each.commit_record.n) for each in plan.cuts),
        chunk_cuts=plan.chunk_cuts,
    )


def judge(plans: Iterable[FoldPlan], rows: Iterable[Any]) -> dict[int, str]:
    """Return partition -> why its state differs, '' if it does not. `rows` are `fold.sums_of` and the reports."""
    sums: dict[int, dict[str, Sums]] = {}
    task_reports: list[TaskReport] = []
    for row in rows:
        if row["table"] == REPORT:
            task_reports.append(decode_report(row["report"]))
        else:
            sums.setdefault(row["partition"], {})[row["table"]] = folding.sums_from(row)
    reports = gathered(task_reports)
    return {
        plan.partition: verdict(plan, reports.get(plan.partition, {}), sums.get(plan.partition, {})) for plan in plans
    }


def verdict(plan: FoldPlan, reports: Mapping[str, TaskReport], sums: Mapping[str, Sums]) -> str:
    """Return why this is not the state at the plan's goal; '' if it is."""
    finding = base_finding(plan, reports)
    if finding:
        return finding
    increments, goal = reports.get("increments"), plan.goal.commit_record
    if increments is not None and increments.finding:
        return increments.finding
    last = increments.last if increments is not None else -1
    if goal.n not in (last, plan.first):
        return f"the changelog ends with transaction {last}, but the state of {goal.n} is requested"
    return proves(sums, goal.digest, goal.keys)


def base_finding(plan: FoldPlan, reports: Mapping[str, TaskReport]) -> str:
    """Return the fault of the base, so that the caller tries another one; '' if it is good."""
    if plan.base is None:
        return ""
    finding = judge_chunks(plan.base.manifest, reports.get("chunks"))
    return f"full@{plan.base.offset}: {finding}" if finding else ""
