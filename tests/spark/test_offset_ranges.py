"""Several tasks read one topic partition: no proof is lost at the seams, and only the newest values leave a task."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.snapshot_records import commit_record, header, part

from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, Part, Record
from statehold.snapshot.spark.fold.newest import Newest, unpacked
from statehold.snapshot.spark.fold.report import Scan, TaskReport, decode_report, gathered
from statehold.snapshot.spark.io.scan import Stretch, read_stretches
from statehold.state.partition_table import Changes

pack = msgspec.msgpack.encode
Rows = list[tuple[str, bytes, bytes | None, int]]


def transaction(n: int, **changes: bytes | None) -> list[Record]:
    return [
        header(n),
        part(n, changes=[Changes("t", list(changes), list(changes.values()))]),
        commit_record(n, parts=1),
    ]


LOG = [record for n in range(1, 7) for record in transaction(n, a=b"%d" % n, **{f"k{n}": b"x"})]
#: the second and the third stretch begin after these transactions, at these offsets
CUTS = (2, 4)
STARTS = (6, 12)


def scan(cuts: tuple[int, ...] = CUTS, **fields: Any) -> Scan:
    made = Scan(partition=0, full="f", chunks=6, first=0, lineage="l", topic="increment", cuts=cuts)
    return msgspec.structs.replace(made, **fields)


class Listed:
    """`Reader` of records at these offsets."""

    def __init__(self, found: list[tuple[int, Record]]) -> None:
        self._found = found

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[list[Any]]:
        for offset, record in self._found:
            if start <= offset < end:
                yield [SimpleNamespace(offset=lambda at=offset: at, value=lambda of=record: records.pack(of))]

    def close(self) -> None:
        """Nothing is open."""


def task(
    scan: Scan, number: int, topic: str, found: list[tuple[int, Record]], window: int = 1000
) -> tuple[Rows, TaskReport]:
    """What one task makes of records at these offsets."""
    reader: Any = Listed(found)
    blocks = list(
        read_stretches(lambda: reader, [Stretch(scan, number, topic, 0, 1000)], lambda: Newest(window, window))
    )
    rows: Rows = []
    for each in blocks[:-1]:
        table, (keys, values) = unpacked(each.data)
        rows += [(table, key.as_py(), value.as_py(), each.rank) for key, value in zip(keys, values, strict=True)]
    return rows, decode_report(blocks[-1].data)


def stretches(scan: Scan, log: list[Record]) -> tuple[Rows, list[TaskReport]]:
    """Each stretch read by a task of its own."""
    starts = [0, *STARTS[: len(scan.cuts)], len(log)]
    rows: Rows = []
    reports: list[TaskReport] = []
    for number, (low, high) in enumerate(pairwise(starts)):
        some, reported = task(scan, number, "increment", list(enumerate(log))[low:high])
        rows += some
        reports.append(reported)
    return rows, reports


def newest(rows: Rows) -> dict[bytes, bytes | None]:
    """The value of the highest rank of each key."""
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
        left = [(i, each) for i, each in enumerate(LOG) if not at <= i < at + 3]
        ranges = zip((0, *STARTS), (*STARTS, len(LOG)), strict=True)
        reports = [
            task(scan(), number, "increment", [each for each in left if low <= each[0] < high])[1]
            for number, (low, high) in enumerate(ranges)
        ]
        assert gathered(reports)[0]["increments"].finding, at
    moved = [each if isinstance(each, Part) else msgspec.structs.replace(each, lineage="x") for each in LOG[6:]]
    other = [*LOG[:6], *moved]
    assert "state generation" in gathered(stretches(scan(), other)[1])[0]["increments"].finding


def chunk(i: int, value: bytes = b"v") -> Chunk:
    return Chunk("f", i, -1, records.entry(Changes("t", [f"k{i}"], [value])))


def chunk_reports(*found: list[tuple[int, Chunk]]) -> TaskReport:
    cut = scan(chunk_stretches=3)
    numbers = [next(i for i, end in enumerate((10, 20, 99)) if each[0][0] < end) for each in found]
    reports = [task(cut, number, "full", list(each))[1] for number, each in zip(numbers, found, strict=True)]
    return gathered(reports)[0]["chunks"]


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
        rows, _ = task(scan(()), 0, "increment", list(enumerate(flat)), window)
        assert newest(rows) == state


def test_values_that_grow_are_noticed_and_older_ones_do_not_count() -> None:
    rows, size = Newest(10_000, 10_000), 0
    for _ in range(1000):
        rows.add(records.entry(Changes("t", ["a"], [b"x" * 100])))
        assert not rows.crowded
    while not rows.crowded:
        rows.add(records.entry(Changes("t", ["a"], [b"y" * (size := size + 500)])))
        assert size < 15_000
    assert size >= 4_500
    ((_, data),) = rows.take()
    table, (keys, values) = unpacked(data)
    assert (table, keys.to_pylist(), values.to_pylist()) == ("t", [pack("a")], [b"y" * size])


def test_a_later_chunk_replaces_and_deletes_rows_of_an_earlier_one() -> None:
    """Of full snapshots that share chunks, also if a task hands its keys over between two chunks (rule S7)."""
    chunks: list[tuple[int, Record]] = [
        (i, Chunk("f", i, -1, records.entry(Changes("t", ["a", f"k{i}"], [b"%d" % i if i < 5 else None, b"x"]))))
        for i in range(6)
    ]
    for window in (1, 10_000):
        rows, report = task(scan(()), 0, "full", chunks, window)
        assert (report.finding, len(report.checksums)) == ("", 6)
        assert newest(rows)[pack("a")] is None
        ranks = [rank for _, key, _, rank in rows if key == pack("a")]
        assert ranks == sorted(set(ranks)), "blocks may arrive in any order"
        assert max(ranks) <= scan().first, "each delta is later"
    before, _ = task(scan(()), 0, "full", chunks[:5], 1)
    assert newest(before)[pack("a")] == b"4"
