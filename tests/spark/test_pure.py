"""The parts of a compaction that need no Spark: unpacking, packing, digests, what may be deleted."""

from __future__ import annotations

import decimal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.making import commit_record, header, part

from statehold.declarations.joins import BufferedRecord, JoinBuffer
from statehold.declarations.windows import Session, Tumbling
from statehold.snapshot.format import digest, records
from statehold.snapshot.format.digest import packed_seeds, seeds
from statehold.snapshot.format.records import Chunk, Manifest, Record
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import cut
from statehold.snapshot.spark.export.columns import Columns
from statehold.snapshot.spark.fold.fold import Packer
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.proof import Sums, limbs, proves
from statehold.snapshot.spark.fold.report import Scan, TaskReport, decode_report
from statehold.snapshot.spark.fold.unpack import Unpacker
from statehold.table import Changes
from statehold.tables.binding import bind

pack = msgspec.msgpack.encode
KEYS: list[st.SearchStrategy[Any]] = [
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(-(2**60), 2**60),
    st.tuples(st.integers(0, 9), st.text(max_size=5)),
]


@pytest.mark.parametrize("keys", KEYS)
def test_a_packed_key_has_the_seed_of_the_key(keys: st.SearchStrategy[Any]) -> None:
    @settings(deadline=None)
    @given(st.lists(keys, max_size=5))
    def check(found: list[Any]) -> None:
        packed = [pack(key) for key in found]
        assert list(packed_seeds("t", packed, text=True)) == list(seeds("t", found))

    check()


@pytest.mark.parametrize("key", [decimal.Decimal("1.5"), uuid.UUID(int=5)])
def test_a_key_type_that_is_text_only_when_packed_is_proven_too(key: Any) -> None:
    wanted = digest.table_digest("t", [key], [b"v"]) + digest.table_digest("u", ["a"], [b"w"])
    sums = {"t": Sums(), "u": Sums()}
    sums["t"].add("t", [pack(key)], [b"v"])
    sums["u"].add("u", [pack("a")], [b"w"])
    assert proves(sums, digest.to_bytes(wanted), 2) == ""
    assert "digest" in proves(sums, digest.to_bytes(wanted + 1), 2)
    assert "keys" in proves(sums, digest.to_bytes(wanted), 3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**128 - 1), max_size=20))
def test_limbs_add_up(numbers: list[int]) -> None:
    columns = zip(*map(limbs, numbers), strict=True) if numbers else [[0]] * 4
    assert sum(sum(column) << 32 * at for at, column in enumerate(columns)) % 2**128 == sum(numbers) % 2**128


SCAN = Scan(partition=0, full="f", chunks=2, first=5, lineage="l", topic="increment")


def unpacked(*found: tuple[str, Record | bytes], scan: Scan = SCAN) -> tuple[list[tuple[Any, ...]], list[TaskReport]]:
    """Rows without their partition, and reports."""
    payloads = [data if isinstance(data, bytes) else records.pack(data) for _, data in found]
    batch = pa.record_batch(
        [
            pa.array([topic for topic, _ in found]),
            pa.array([0] * len(found), pa.int32()),
            pa.array(range(len(found)), pa.int64()),
            pa.array(payloads, pa.binary()),
        ],
        names=["topic", "partition", "offset", "value"],
    )
    rows = [tuple(row.values())[1:] for out in Unpacker({0: scan})(iter([batch])) for row in out.to_pylist()]
    reports = [decode_report(row[2]) for row in rows if row[0] == REPORT]
    return [row for row in rows if row[0] != REPORT], reports


CHANGES = Changes("t", ["a", "b"], [b"1", None])


def test_only_whole_transactions_above_the_base_become_rows() -> None:
    whole: list[Record] = [
        header(5),
        part(5, changes=[CHANGES]),
        commit_record(5, parts=1),
        header(6),
        part(6, changes=[CHANGES]),
    ]
    rows, (report,) = unpacked(*(("increment", record) for record in [*whole, commit_record(6, parts=1)]))
    assert rows == [("t", pack("a"), b"1", 6), ("t", pack("b"), None, 6)]
    assert (report.last, report.finding, report.entries) == (6, "", 2)
    rows, (report,) = unpacked(*(("increment", record) for record in whole))
    assert rows == []
    assert "torn commit" in report.finding


@pytest.mark.parametrize(
    ("records_", "finding"),
    [
        ([header(6), part(6, changes=[CHANGES]), commit_record(6, parts=2)], "counts 2 chunks, the log holds 1"),
        ([header(6), part(6, attempt="b", changes=[CHANGES]), commit_record(6, parts=1)], "of producer session b"),
        ([header(7), commit_record(7)], "a hole"),
        ([header(6, lineage="other"), commit_record(6, lineage="other")], "state generation"),
    ],
)
def test_damage_becomes_a_finding_and_no_row(records_: list[Record], finding: str) -> None:
    rows, (report,) = unpacked(*(("increment", record) for record in records_))
    assert rows == []
    assert finding in report.finding


def chunk(i: int, full: str = "f") -> Chunk:
    return Chunk(full, i, -1, records.entry(Changes("t", [f"k{i}"], [b"v"])))


def test_foreign_and_duplicate_chunks_are_skipped_and_a_missing_one_is_reported() -> None:
    rows, (report,) = unpacked(("full", chunk(0)), ("full", chunk(0, "x")), ("full", chunk(0)), ("full", chunk(1)))
    assert [row[1] for row in rows] == [pack("k0"), pack("k1")]
    assert (len(report.checksums), report.finding) == (2, "")
    _, (report,) = unpacked(("full", chunk(0)), ("full", chunk(2)))
    assert report.finding == "chunk 1 of 2 is missing"
    _, (report,) = unpacked(("full", records.pack(chunk(0))[:-1] + b"?"))
    assert "offset 0" in report.finding


@settings(deadline=None)
@given(st.integers(0, 1500), st.integers(1, 700))
def test_packing_loses_nothing_wherever_the_batches_end(count: int, batch: int) -> None:
    where = [(0, bucket, table) for bucket in (0, 1) for table in ("t", "u")]
    rows = [(*where[i * 4 // max(count, 1)], pack(i), b"v%d" % i) for i in range(count)]
    names = ["partition", "bucket", "table", "key", "value"]
    types = [pa.int32(), pa.int32(), pa.string(), pa.binary(), pa.binary()]
    batches = [
        pa.record_batch([pa.array(c, t) for c, t in zip(zip(*part_, strict=True), types, strict=True)], names=names)
        for low in range(0, count, batch)
        if (part_ := rows[low : low + batch])
    ]
    out = [row for made in Packer(10_000)(batches) for row in made.to_pylist()]
    back = []
    for row in out:
        table, keys, values = msgspec.msgpack.decode(row["entry"])
        assert (table, len(keys)) == (row["table"], row["keys"])
        back += [(row["partition"], row["bucket"], table, pack(k), v) for k, v in zip(keys, values, strict=True)]
    assert back == rows
    assert len({(row["bucket"], row["table"], row["seq"]) for row in out}) == len(out)


def full(first: int, low: int, increment: int, offset: int = 99) -> LocatedManifest:
    manifest = Manifest(
        full=f"{first}-{low}",
        service="s",
        partition=0,
        partitions=1,
        lineage="l",
        first=first,
        through=first,
        positions={},
        increment=increment,
        low=low,
        checksums=(1,),
    )
    return LocatedManifest(offset, manifest)


def test_truncation_keeps_the_newest_by_s_and_every_chunk_of_them() -> None:
    assert cut([full(9, 50, 90), full(5, 10, 40)], 3) is None
    assert cut([full(5, 80, 40), full(9, 50, 90), full(2, 10, 5)], 2) == (50, 40)
    assert cut([full(9, 50, 90), full(9, 60, 90)], 2) is None, "a second one at the same S does not count"


def test_each_partition_has_a_task_of_its_own(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statehold.snapshot.spark.io.write import _slots, spread

    numbers = [0, 1, 7, 42, 1 << 20, (1 << 31) - 1]
    hashed = spark.createDataFrame([(each,) for each in numbers], "n int").select(F.hash("n").alias("h")).collect()
    assert [row["h"] for row in hashed] == list(map(spread, numbers))
    partitions = [3, 4, 5, 11, 12]
    rows = spark.createDataFrame([(each,) for each in partitions * 3], "partition int")
    spread_out = rows.repartition(5, _slots(partitions, 5)[F.col("partition")])
    tasks = spread_out.select(F.spark_partition_id().alias("task"), "partition").distinct().collect()
    assert len({row["task"] for row in tasks}) == len(tasks) == 5


@pytest.mark.slow
def test_the_job_for_spark_submit_ignores_the_modules_next_to_it() -> None:
    job = Path(__file__).resolve().parents[2] / "ops" / "cli" / "spark_job.py"
    for command, wanted in (((), "statehold compact"), (("snapshot", "export"), "statehold snapshot export")):
        ran = subprocess.run([sys.executable, job, *command, "--help"], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert wanted in ran.stdout


@pytest.mark.parametrize(
    "windows", [Tumbling(60, key=str, value=int), Session(60, key=str, value=int, merge=lambda a, b: a + b)]
)
def test_a_window_is_exported_with_key_start_and_end(windows: Any) -> None:
    table = bind(windows)
    columns, key = Columns(table), msgspec.msgpack.encode(("ACME", 60_000, 120_000))
    stored = pa.RecordBatch.from_pydict({"partition": [0], "key": [key], "value": [table.encode(7)]})
    (batch,) = columns([stored])
    assert batch.to_pylist() == [{"partition": 0, "key": {"_1": "ACME", "_2": 60_000, "_3": 120_000}, "value": 7}]


def test_a_row_of_a_join_is_exported_with_both_sides() -> None:
    table = bind(JoinBuffer(60, key=str, left=int, right=str))
    columns, key = Columns(table), msgspec.msgpack.encode(("ACME", "right", 60_000, 0))
    value = table.encode(BufferedRecord(right="sold"))
    (batch,) = columns([pa.RecordBatch.from_pydict({"partition": [0], "key": [key], "value": [value]})])
    assert batch.to_pylist() == [
        {
            "partition": 0,
            "key": {"_1": "ACME", "_2": "right", "_3": 60_000, "_4": 0},
            "left": None,
            "right": "sold",
            "waiting": False,
        }
    ]


def test_a_java_that_cannot_run_spark_is_named() -> None:
    """As Spark says it with the small Java that the extra `dev` brings for brokers."""
    from pyspark.errors import PySparkRuntimeError

    from statehold.snapshot.spark.io.source import failed_job

    ended = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    assert str(failed_job(ended)).endswith("Next: apt-get install openjdk-17-jre-headless")
    assert "Spark job failed" in str(failed_job(PySparkRuntimeError("[X] other")))
