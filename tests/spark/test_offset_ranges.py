"""Several tasks read one topic partition: no proof is lost at the seams, and only the newest values leave a task."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.making import commit_record, header, part

from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, Part, Record
from statehold.snapshot.spark.fold.newest import REPORT, Newest
from statehold.snapshot.spark.fold.report import Cut, Scan, TaskReport, decode_report, gathered
from statehold.snapshot.spark.fold.unpack import Unpacker
from statehold.table import Changes

pack = msgspec.msgpack.encode
Rows = list[tuple[str, bytes, bytes | None, int]]


def transaction(n: int, **changes: bytes | None) -> list[Record]:
    return [
        header(n),
        part(n, changes=[Changes("t", list(changes), list(changes.values()))]),
        commit_record(n, parts=1),
    ]


LOG = [record for n in range(1, 7) for record in transaction(n, a=b"%d" % n, **{f"k{n}": b"x"})]
#: after transactions 2 and 4
CUTS = (Cut(6, 2), Cut(12, 4))


def scan(cuts: tuple[Cut, ...] = CUTS, **fields: Any) -> Scan:
    made = Scan(partition=0, full="f", chunks=6, first=0, lineage="l", topic="increment", cuts=cuts)
    return msgspec.structs.replace(made, **fields)


def task(scan: Scan, topic: str, found: list[tuple[int, Record]], window: int = 1000) -> tuple[Rows, list[TaskReport]]:
    """What one task makes of records at these offsets, fed in small batches."""
    batches = [
        pa.record_batch(
            [pa.array([topic]), pa.array([0], pa.int32()), pa.array([offset]), pa.array([records.pack(record)])],
            names=["topic", "partition", "offset", "value"],
        )
        for offset, record in found
    ]
    rows = [tuple(row.values())[1:] for out in Unpacker({0: scan}, window)(batches) for row in out.to_pylist()]
    return [row for row in rows if row[0] != REPORT], [decode_report(row[2]) for row in rows if row[0] == REPORT]


def stretches(scan: Scan, log: list[Record]) -> tuple[Rows, list[TaskReport]]:
    """Each stretch read by a task of its own."""
    starts = [0, *(cut.offset for cut in scan.cuts), len(log)]
    rows: Rows = []
    reports: list[TaskReport] = []
    for low, high in pairwise(starts):
        some, reported = task(scan, "increment", list(enumerate(log))[low:high])
        rows += some
        reports += reported
    return rows, reports


def newest(rows: Rows) -> dict[bytes, bytes | None]:
    """What `max_by(value, rank)` makes of them."""
    best: dict[bytes, tuple[int, bytes | None]] = {}
    for _, key, value, rank in rows:
        if key not in best or rank > best[key][0]:
            best[key] = rank, value
    return {key: value for key, (_, value) in best.items()}


def test_offset_ranges_follow_each_other() -> None:
    rows, reports = stretches(scan(), LOG)
    reported = gathered(reversed(reports))[0]["increments"]
    assert (reported.finding, reported.last, reported.entries, reported.after) == ("", 6, 12, 0)
    assert newest(rows)[pack("a")] == b"6"
    assert sum(row[1] == pack("a") for row in rows) == 3, "one for each stretch"
    assert newest(rows) == newest(stretches(scan(()), LOG)[0])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_unread_offset_range_is_missed(lost: int) -> None:
    _, reports = stretches(scan(), LOG)
    del reports[lost]
    assert "were read" in gathered(reports)[0]["increments"].finding


def test_a_hole_at_a_seam_is_a_finding() -> None:
    _, reports = stretches(scan(), LOG)
    reports[0].last = 1
    assert gathered(reports)[0]["increments"].finding == "the changelog before transaction 3 ends with transaction 1"
    for at in (3, 6):  # a transaction is gone before, and after the first seam
        _, reports = task(scan(), "increment", [(i, each) for i, each in enumerate(LOG) if not at <= i < at + 3])
        assert gathered(reports)[0]["increments"].finding, at
    moved = [each if isinstance(each, Part) else msgspec.structs.replace(each, lineage="x") for each in LOG[6:]]
    other = [*LOG[:6], *moved]
    assert "state generation" in gathered(stretches(scan(), other)[1])[0]["increments"].finding


def chunk(i: int, value: bytes = b"v") -> Chunk:
    return Chunk("f", i, -1, records.entry(Changes("t", [f"k{i}"], [value])))


def chunk_reports(*found: list[tuple[int, Chunk]]) -> TaskReport:
    cut = scan(chunk_cuts=(10, 20))
    return gathered(report for each in found for report in task(cut, "full", list(each))[1])[0]["chunks"]


def test_chunks_of_several_offset_ranges_are_those_of_one() -> None:
    one, two, three = [(8, chunk(0)), (9, chunk(1))], [(10, chunk(2)), (11, chunk(3))], [(20, chunk(4))]
    sums = [frame.body_checksum(records.pack(chunk(i))) for i in range(5)]
    joined = chunk_reports(one, two, three)
    assert (joined.finding, joined.checksums, joined.entries) == ("", sums, 5)
    assert chunk_reports(one, [(10, chunk(1)), *two], three).checksums == sums, "a double at a seam"
    assert chunk_reports(one, [(10, chunk(1, b"w")), *two], three).finding == "chunk 2 is missing"
    assert chunk_reports(one, three).finding == "chunk 2 is missing"
    assert chunk_reports(one, two[1:], three).finding == "chunk 2 is missing"


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.none() | st.binary(max_size=9), max_size=4), max_size=20))
def test_whatever_the_window_the_newest_value_wins(log: list[dict[str, bytes | None]]) -> None:
    state: dict[bytes, bytes | None] = {}
    flat: list[Record] = []
    for n, changes in enumerate(log, 1):
        state |= {pack(key): value for key, value in changes.items()}
        flat += transaction(n, **changes)
    for window in (1, 200, 10**6):
        rows, _ = task(scan(()), "increment", list(enumerate(flat)), window)
        assert newest(rows) == state


def test_values_that_grow_are_noticed() -> None:
    rows = Newest(0, 10_000)
    rows.add(records.entry(Changes("t", ["a"], [b"x"])))
    added = 0
    while not rows.crowded:
        rows.add(records.entry(Changes("t", ["a"], [b"y" * (added := added + 500)])))
        assert added < 30_000
    assert added >= 9_000
