"""The parts of a compaction that need no Spark: unpacking, packing, digests, what may be deleted."""

from __future__ import annotations

import decimal
import random
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
from tests.support.snapshot_records import commit_record, header, part

from statehold.api.joins import BufferedRecord, JoinBuffer
from statehold.api.windows import Session, Tumbling
from statehold.bound.table import bind
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, Manifest, Record
from statehold.snapshot.full import CHUNK_KEYS
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import cut
from statehold.snapshot.spark.export.columns import Columns
from statehold.snapshot.spark.fold import merge as merging
from statehold.snapshot.spark.fold.newest import REPORT, KeyBlock, Newest, packed, unpacked
from statehold.snapshot.spark.fold.proof import Sums, proves
from statehold.snapshot.spark.fold.report import Scan, TaskReport, encode_report
from statehold.snapshot.spark.fold.unpack import Chunks, Increments
from statehold.snapshot.spark.io.write import ChunkWriter, Target, decode_written
from statehold.state import digest
from statehold.state.digest import packed_seeds, seeds
from statehold.state.partition_table import Changes

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


SCAN = Scan(partition=0, full="f", chunks=2, first=5, lineage="l", topic="increment")


def taken(
    *found: Record | bytes, scan: Scan = SCAN, chunks: bool = False
) -> tuple[dict[bytes, bytes | None], TaskReport]:
    """Keys and values that an executor takes from records at the offsets 0, 1, ..., and its report."""
    taking = Chunks(scan, 0, Newest()) if chunks else Increments(scan, 0, Newest())
    for offset, record in enumerate(found):
        taking.feed(offset, record if isinstance(record, bytes) else records.pack(record))
    held: dict[bytes, bytes | None] = {}
    for _, data in taking.newest.take():
        table, (keys, values) = unpacked(data)
        assert table == "t"
        held |= zip(keys.to_pylist(), values.to_pylist(), strict=True)
    return held, taking.done()


CHANGES = Changes("t", ["a", "b"], [b"1", None])


def test_only_whole_transactions_above_the_base_become_rows() -> None:
    whole: list[Record] = [
        header(5),
        part(5, changes=[CHANGES]),
        commit_record(5, parts=1),
        header(6),
        part(6, changes=[CHANGES]),
    ]
    rows, report = taken(*whole, commit_record(6, parts=1))
    assert rows == {pack("a"): b"1", pack("b"): None}
    assert (report.last, report.finding, report.entries) == (6, "", 2)
    rows, report = taken(*whole)
    assert rows == {}
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
    rows, report = taken(*records_)
    assert rows == {}
    assert finding in report.finding


def chunk(i: int, full: str = "f") -> Chunk:
    return Chunk(full, i, -1, records.entry(Changes("t", [f"k{i}"], [b"v"])))


def test_foreign_and_duplicate_chunks_are_skipped_and_a_missing_one_is_reported() -> None:
    rows, report = taken(chunk(0), chunk(0, "x"), chunk(0), chunk(1), chunks=True)
    assert rows.keys() == {pack("k0"), pack("k1")}
    assert (len(report.checksums), report.finding) == (2, "")
    rows, report = taken(chunk(0), chunk(1), chunk(2), chunks=True)
    assert rows.keys() == {pack("k0"), pack("k1")}, "the manifest names two"
    _, report = taken(chunk(0), chunk(2), chunks=True, scan=msgspec.structs.replace(SCAN, chunks=3))
    assert report.finding == "chunk 1 of 3 is missing"
    _, report = taken(records.pack(chunk(0))[:-1] + b"?", chunks=True)
    assert "offset 0" in report.finding


KEY = st.integers(0, 20) | st.text("abc", max_size=2) | st.tuples(st.integers(0, 3), st.just("a"))
KEY_AND_VALUE = st.tuples(st.sampled_from("tu"), KEY, st.none() | st.binary(max_size=30))


@pytest.mark.parametrize("at_a_time", [1, 200, 10**6])
@settings(deadline=None)
@given(windows=st.lists(st.lists(KEY_AND_VALUE, max_size=30), max_size=6), seed=st.randoms(use_true_random=False))
def test_merging_keeps_the_newest_value_of_each_key_in_whatever_order_blocks_come(
    at_a_time: int, windows: list[list[tuple[str, Any, bytes | None]]], seed: random.Random
) -> None:
    wanted: dict[tuple[str, bytes], bytes] = {}
    blocks = [KeyBlock(3, -1, 9, 0, encode_report(TaskReport(partition=3, kind="increments")))]
    for rank, window in enumerate(windows):
        newest = Newest(10**6)
        for table, key, value in window:
            newest.add(records.entry(Changes(table, [key], [value])))
            wanted.pop((table, pack(key)), None)
            wanted |= {(table, pack(key)): value} if value is not None else {}
        blocks += [KeyBlock(3, bucket, rank, 0, data) for bucket, data in newest.take()]
    seed.shuffle(blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_AT_A_TIME", at_a_time)
        rows = list(merging.merge(blocks))
    assert rows.pop([row[1] for row in rows].index(REPORT))[3] == [blocks[[b.bucket for b in blocks].index(-1)].data]
    pairs = [((table, key), value) for p, table, keys, values in rows for key, value in zip(keys, values, strict=True)]
    assert dict(pairs) == wanted
    assert len(pairs) == len(wanted), "each key once"


def test_a_finding_keeps_the_rows_of_its_partition_back() -> None:
    finding = encode_report(TaskReport(partition=3, kind="increments", finding="a hole"))
    blocks = [
        KeyBlock(3, 7, 1, 0, packed("t", (pa.array([pack("a")]), pa.array([b"1"])))),
        KeyBlock(3, -1, 1, 0, finding),
    ]
    assert list(merging.merge(blocks)) == [(3, REPORT, [b""], [finding])]


@settings(deadline=None)
@given(st.integers(0, 1500), st.integers(1, 700))
def test_writing_loses_nothing_wherever_the_rows_end(count: int, size: int) -> None:
    pairs = [(pack(i), b"v%d" % i) for i in range(count)]
    rows: list[merging.Rows] = []
    for low in range(0, count, size):
        keys, values = zip(*pairs[low : low + size], strict=True)
        rows.append((0, "t", list(keys), list(values)))
    sink = Kept()
    out = [decode_written(data) for _, data in ChunkWriter({0: Target(-1, frame.NEWEST, 2000)}, lambda _: sink)(rows)]
    back: list[tuple[bytes, bytes]] = []
    for number, data in enumerate(sink.sent):
        chunk_ = records.unpack(data)
        assert isinstance(chunk_, Chunk)
        table, keys_, values_ = msgspec.msgpack.decode(chunk_.entry)
        assert (table, chunk_.i, len(keys_) <= CHUNK_KEYS) == ("t", number, True)
        back += zip(map(pack, keys_), values_, strict=True)
    assert back == pairs
    assert [(each.keys, each.low, each.high) for each in out] == ([(count, 0, len(sink.sent) - 1)] if count else [])


class Kept:
    """`FullSink` in memory."""

    crowded = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def open(self, full: str, segments: int = 0) -> str:
        return ""

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)

    def seal(self) -> int:
        return 0

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return list(range(len(self.sent)))

    def close(self) -> None:
        """Nothing is open."""


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
    assert str(failed_job(ended)).endswith("Next: apt-get install default-jre-headless")
    assert "Spark job failed" in str(failed_job(PySparkRuntimeError("[X] other")))
