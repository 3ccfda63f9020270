"""Runs of a commit record: any order comes back, foreign bytes raise BadFrame, and the size is bounded."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count, groupby, islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import message
from tests.support.snapshot_records import commit_record

from statehold.api.record import MergedMessage
from statehold.common.names import MOST_INPUTS
from statehold.snapshot.format import records, runs
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.format.runs import Run

MANY = 10_000
#: with those at which a length takes another byte
lengths = st.sampled_from([2**bits + more for bits in (7, 14, 21, 56) for more in (-1, 0, 1)]) | st.integers(1, 2**60)


def merged(order: list[int]) -> list[MergedMessage]:
    """Records whose inputs come in this order."""
    offsets = [count() for _ in range(MOST_INPUTS)]
    return [MergedMessage(message(next(offsets[index])), index, at) for at, index in enumerate(order)]


def packed(order: list[int]) -> bytes:
    """The runs of records whose inputs come in this order."""
    return runs.pack(runs.of([merged(order)] if order else []))


def unpacked(data: bytes, inputs: int = MOST_INPUTS) -> list[int]:
    return [run.input for run in runs.unpack(data, inputs) for _ in range(run.length)]


@given(st.lists(st.integers(0, MOST_INPUTS - 1) | st.integers(0, 1), max_size=300))
def test_any_order_comes_back_and_costs_at_most_two_bytes_for_each_record(order: list[int]) -> None:
    assert unpacked(packed(order)) == order
    assert len(packed(order)) <= 2 * len(order)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.sets(st.integers(1, 59)))
def test_batches_are_cut_anywhere(order: list[int], cuts: set[int]) -> None:
    records, ends = merged(order), [0, *sorted(cut for cut in cuts if cut < len(order)), len(order)]
    batches = [records[first:end] for first, end in pairwise(ends)]
    assert list(runs.of(batches)) == [(index, len(list(group))) for index, group in groupby(order)]


@given(st.lists(st.builds(Run, st.integers(0, MOST_INPUTS - 1), lengths)))
def test_runs_of_any_length_come_back(given: list[Run]) -> None:
    assert list(runs.unpack(runs.pack(given), MOST_INPUTS)) == given
    assert all(len(runs.pack([run])) <= 2 * run.length for run in given)


@given(st.binary(max_size=60), st.integers(1, 3))
def test_foreign_bytes_raise_only_bad_frame_and_give_no_more_runs_than_bytes(data: bytes, inputs: int) -> None:
    found: list[Run] = []
    with suppress(BadFrame):
        for run in runs.unpack(data, inputs):
            assert run.input < inputs
            assert 0 <= run.length < 2**63
            found += [run]
    assert len(found) <= len(data) / 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x02\x01", "an input that does not exist"),
        (b"\xff", "an input and no length"),
        (b"\x00", "no length"),
        (b"\x00\x80", "a length that ends in the middle"),
        (b"\x00\x01\x01", "a second run without a length"),
        (b"\x00" + b"\xff" * 8 + b"\xff\x00", "a length of more than 63 bits"),
        (b"\x00" + b"\x80" * 1_000_000, "a length without an end"),
    ],
)
def test_bytes_that_are_no_runs_are_rejected(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match="is not the order of the records of 2 inputs") as caught:
        list(runs.unpack(data, 2))
    assert len(str(caught.value)) < 200, why


def test_an_enormous_length_is_one_run_and_fills_no_memory() -> None:
    assert list(runs.unpack(b"\x00" + b"\xff" * 8 + b"\x7f", 1)) == [Run(0, 2**63 - 1)]


def test_runs_are_read_as_they_are_needed() -> None:
    data = runs.pack([Run(0, 1), Run(1, 1)] * 1_000_000)
    assert list(islice(runs.unpack(data, 2), 2)) == [Run(0, 1), Run(1, 1)]


#: the table in docs/reference/format.md: bytes for each record, in the commit record and as its frame is stored
COSTS = {
    "two inputs in turn": (2.0, 0.01),
    "two inputs by chance": (1.0, 0.3),
    "one record in 10 of the second input": (0.4, 0.15),
    "one record in 100 of the second input": (0.06, 0.03),
    "500 records of an input, 500 of the other": (0.01, 0.01),
    "a hundred inputs by chance": (2.0, 1.1),
}


def order_of(case: str) -> list[int]:
    draw = random.Random(1)
    return {
        "two inputs in turn": [number % 2 for number in range(MANY)],
        "two inputs by chance": [draw.randrange(2) for _ in range(MANY)],
        "one record in 10 of the second input": [int(draw.randrange(10) == 0) for _ in range(MANY)],
        "one record in 100 of the second input": [int(draw.randrange(100) == 0) for _ in range(MANY)],
        "500 records of an input, 500 of the other": [number // 500 % 2 for number in range(MANY)],
        "a hundred inputs by chance": [draw.randrange(MOST_INPUTS) for _ in range(MANY)],
    }[case]


@pytest.mark.parametrize("case", COSTS)
def test_the_order_costs_what_the_page_says(case: str) -> None:
    recorded = packed(order_of(case))
    plain, stored = (len(records.pack(commit_record(1, runs=each))) for each in (b"", recorded))
    most, most_stored = COSTS[case]
    assert 0.5 * most <= len(recorded) / MANY <= most
    assert (stored - plain) / MANY <= most_stored


def test_the_page_has_these_figures(root: Path) -> None:
    page = (root / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
    for case, (most, most_stored) in COSTS.items():
        assert f"| {case} | {most:g} | {most_stored:g} |" in page
