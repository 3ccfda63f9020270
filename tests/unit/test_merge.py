"""The merge of several inputs: a plain merge by time where all is known, and what it waits for where it is not."""

from __future__ import annotations

import math
from typing import Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.api.record import MemoryMessage, Message, input_of_all
from statehold.worker.inputs.merge import Merge

EXTREMES: Final = (-(2**63), -1, 0, 1, 2**63 - 1)
times = st.integers(-3, 6) | st.sampled_from(EXTREMES)
inputs_of = st.lists(st.lists(times, max_size=12), min_size=2, max_size=4)


def message(index: int, offset: int, time: int) -> Message:
    return MemoryMessage(f"input-{index}", 0, offset, b"", timestamp=time)


def fed(times: list[list[int]], *, order: Literal["time", "arrival"] = "time", idle: float = 0.0) -> Merge:
    """A merge with all records of inputs that have no more."""
    merge = Merge([0] * len(times), order=order, idle=idle)
    for index, each in enumerate(times):
        merge.add(index, [message(index, offset, time) for offset, time in enumerate(each)])
        merge.end(index, 0.0)
    return merge


def drained(merge: Merge, most: int = 1000, now: float = 0.0) -> list[tuple[int, int]]:
    """(input, offset) of all records that come without more of them or more time."""
    found: list[tuple[int, int]] = []
    while merged := merge.next(most, now):
        found += [(each.input, each.offset() or 0) for each in merged]
    return found


@given(st.lists(st.lists(times, max_size=12).map(sorted), min_size=2, max_size=4), st.integers(1, 50))
def test_inputs_in_the_order_of_time_are_merged_like_a_stable_sort(given: list[list[int]], most: int) -> None:
    rows = [(time, index, offset) for index, each in enumerate(given) for offset, time in enumerate(each)]
    wanted = [(index, offset) for _, index, offset in sorted(rows)]
    assert drained(fed(given), most) == wanted


@given(inputs_of, st.integers(1, 50))
def test_inputs_in_any_order_are_merged_by_their_heads(given: list[list[int]], most: int) -> None:
    found, wanted = drained(fed(given), most), []
    queues = [list(enumerate(each)) for each in given]
    while any(queues):
        index = min((i for i, queue in enumerate(queues) if queue), key=lambda i: queues[i][0][1])
        wanted.append((index, queues[index].pop(0)[0]))
    assert found == wanted


@given(inputs_of, st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_places_grow_and_the_position_is_the_sum_of_the_next_offsets(given: list[list[int]], sizes: list[int]) -> None:
    merge, reached, turn = fed(given), [0] * len(given), 0
    while merged := merge.next(sizes[turn % len(sizes)], 0.0):
        turn += 1
        for each in merged:
            assert each.at == sum(reached) - reached[each.input] + (each.offset() or 0)
            reached[each.input] = (each.offset() or 0) + 1
        assert merge.position == sum(reached) == merged[-1].at + 1
    assert merge.depth == 0


gaps = st.lists(st.tuples(times, st.integers(0, 3)), max_size=10)


@given(st.lists(gaps, min_size=2, max_size=3), st.integers(0, 20), st.integers(1, 20))
def test_records_of_one_input_in_sequence_are_known_by_the_first_and_the_last(
    given: list[list[tuple[int, int]]], low: int, length: int
) -> None:
    merge = Merge([0] * len(given), order="time", idle=0.0)
    for index, each in enumerate(given):
        offsets, at = [], -1
        for time, gap in each:
            at += 1 + gap  # compaction and control records leave gaps
            offsets.append(message(index, at, time))
        merge.add(index, offsets)
        merge.end(index, 0.0)
    if part := merge.next(1000, 0.0)[low : low + length]:
        inputs = {each.input for each in part}
        assert input_of_all(part) == (inputs.pop() if len(inputs) == 1 else None)


rows = st.tuples(times, st.integers(1, 200), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.lists(rows, max_size=4), min_size=2, max_size=3), st.integers(1, 700), st.sampled_from([0, 1]))
def test_long_rows_of_one_input_come_as_their_records_one_by_one_would(
    given: list[list[tuple[int, int, int, int]]], most: int, step: int
) -> None:
    """Each row: its first time, its length, the gap before it, and at how many records a time goes back."""
    written: list[list[tuple[int, int]]] = []
    for each in given:
        records, offset = list[tuple[int, int]](), 0
        for time, length, gap, back in each:
            offset += gap
            for i in range(length):
                moved = time + i * step - (back if i % 70 == 69 else 0)
                records.append((offset + i, min(max(moved, -(2**63)), 2**63 - 1)))
            offset += length
        written.append(records)
    merge = Merge([0] * len(written), order="time", idle=0.0)
    for index, records in enumerate(written):
        merge.add(index, [message(index, offset, time) for offset, time in records])
        merge.end(index, 0.0)
    queues, reached, wanted = [records[::-1] for records in written], [0] * len(written), []
    while any(queues):
        index = min((i for i, queue in enumerate(queues) if queue), key=lambda i: queues[i][-1][1])
        offset, _ = queues[index].pop()
        wanted.append((index, offset, sum(reached) - reached[index] + offset))
        reached[index] = offset + 1
    found: list[tuple[int, int, int]] = []
    while merged := merge.next(most, 0.0):
        assert len(merged) <= most
        found += [(each.input, each.offset() or 0, each.at) for each in merged]
        assert merge.position == found[-1][2] + 1
    assert found == wanted


def test_a_long_row_ends_before_a_later_record_and_before_an_equal_one_of_an_input_that_is_declared_first() -> None:
    later = fed([[1] * 100 + [9] + [1] * 100, [5]])
    assert drained(later) == [*((0, at) for at in range(100)), (1, 0), *((0, at) for at in range(100, 201))]
    equal = fed([[5], [1] * 100 + [5] * 100])
    assert drained(equal) == [*((1, at) for at in range(100)), (0, 0), *((1, at) for at in range(100, 200))]


def test_a_long_row_ends_where_its_input_has_to_be_waited_for() -> None:
    merge = Merge([0, 0], order="time", idle=2.0)
    merge.add(0, [message(0, offset, 5) for offset in range(100)])
    merge.add(1, [message(1, 0, 9)])
    assert drained(merge) == [(0, offset) for offset in range(100)]
    assert merge.waits(0.0) == math.inf  # the first input may have another record before 9
    merge.add(0, [message(0, 100 + offset, 6) for offset in range(100)])
    merge.end(0, 10.0)
    assert drained(merge, now=11.0) == [(0, 100 + offset) for offset in range(100)]
    assert merge.waits(12.0) == 1.0  # from the moment at which it became empty
    assert drained(merge, now=13.0) == [(1, 0)]


def test_offsets_with_gaps_count_in_the_position() -> None:
    merge = Merge([5, 10], order="time", idle=0.0)
    merge.add(0, [message(0, 7, 1)])
    merge.add(1, [message(1, 10, 2), message(1, 14, 3)])
    merge.end(0, 0.0)
    assert [each.at for each in merge.next(9, 0.0)] == [17, 18, 22]
    assert merge.position == 8 + 15


@pytest.mark.parametrize("times", [[5, 5, 5], [-1, -1, -1], [2**63 - 1] * 3])
def test_of_equal_times_the_input_that_is_declared_first_comes_first(times: list[int]) -> None:
    merge = Merge([0, 0, 0], order="time", idle=0.0)
    for index in (2, 1, 0):  # whichever arrives first
        merge.add(index, [message(index, offset, time) for offset, time in enumerate(times)])
        merge.end(index, 0.0)
    assert drained(merge) == [(index, offset) for index in range(3) for offset in range(3)]


def test_a_record_of_the_far_future_holds_back_none_of_the_other_input() -> None:
    assert drained(fed([[2**62, 1], [3, 4]])) == [(1, 0), (1, 1), (0, 0), (0, 1)]


def test_an_input_whose_next_record_is_not_known_is_waited_for() -> None:
    merge = Merge([0, 0], order="time", idle=0.0)
    merge.add(0, [message(0, 0, 5)])
    assert (merge.ready(1e9), merge.waits(1e9), merge.next(9, 1e9)) == (False, math.inf, [])
    merge.add(1, [message(1, 0, 3)])
    assert drained(merge) == [(1, 0)]  # the second input may have another record that comes before 5
    merge.end(1, 0.0)
    assert drained(merge) == [(0, 0)]


def test_a_known_record_is_merged_however_much_more_its_input_has() -> None:
    """Only the next record of each input has to be known, not all of them."""
    merge = Merge([0, 0], order="time", idle=0.0)
    merge.add(0, [message(0, 0, 1), message(0, 1, 9)])
    merge.add(1, [message(1, 0, 5)])
    assert drained(merge) == [(0, 0), (1, 0)]


def test_an_input_at_its_end_is_waited_for_until_it_has_been_idle() -> None:
    merge = fed([[5], []], idle=2.0)
    assert merge.waits(0.5) == 1.5
    merge.end(1, 1.0)  # again: the wait does not begin once more
    assert (merge.next(9, 1.9), merge.waits(2.0), drained(merge, now=2.0)) == ([], 0.0, [(0, 0)])


def test_the_wait_begins_with_the_last_record_and_again_after_each() -> None:
    merge = fed([[1, 8], [2, 3]], idle=2.0)
    assert drained(merge, now=10.0) == [(0, 0), (1, 0), (1, 1)]
    assert merge.waits(11.0) == 1.0
    merge.add(1, [message(1, 2, 4)])
    assert drained(merge, now=11.5) == [(1, 2)]
    assert merge.waits(100.0) == math.inf  # the broker has not said that there are no more
    merge.end(1, 100.0)
    assert merge.waits(100.5) == 1.5
    assert drained(merge, now=102.0) == [(0, 1)]


def test_no_input_is_waited_for_when_all_are_empty() -> None:
    merge = fed([[], []])
    assert (merge.waits(0.0), merge.ready(0.0), merge.next(9, 0.0)) == (0.0, False, [])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), times), max_size=20), st.integers(1, 50))
def test_in_the_order_of_arrival_nothing_waits_and_batches_stay_whole(
    given: list[tuple[int, int, int]], most: int
) -> None:
    merge, offsets, wanted = Merge([0, 0, 0], order="arrival", idle=9.0), [0, 0, 0], []
    for index, count, time in given:
        messages = [message(index, offsets[index] + number, time) for number in range(count)]
        merge.add(index, messages)
        wanted += [(index, each.offset() or 0) for each in messages]
        offsets[index] += count
    assert drained(merge, most) == wanted
    assert merge.waits(0.0) == 0.0


@given(st.data(), inputs_of, st.sampled_from(["time", "arrival"]), st.sampled_from([0.0, 1.5]))
def test_any_interleaving_of_arrivals_ends_and_time_keeps_each_input_and_loses_nothing(
    data: st.DataObject, given: list[list[int]], order: Literal["time", "arrival"], idle: float
) -> None:
    merge, reached, found, now = Merge([0] * len(given), order=order, idle=idle), [0] * len(given), [], 0.0
    while any(reached[index] < len(each) for index, each in enumerate(given)):
        index = data.draw(st.sampled_from([i for i, each in enumerate(given) if reached[i] < len(each)]))
        count = data.draw(st.integers(1, len(given[index]) - reached[index]))
        piece = range(reached[index], reached[index] + count)
        merge.add(index, [message(index, offset, given[index][offset]) for offset in piece])
        reached[index] += count
        if reached[index] == len(given[index]) and data.draw(st.booleans()):
            merge.end(index, now)
        found += [(each.input, each.offset()) for each in merge.next(data.draw(st.integers(0, 5)), now)]
        now += data.draw(st.sampled_from([0.0, 1.0]))
        assert merge.depth + len(found) == sum(reached)
    for index in range(len(given)):
        merge.end(index, now)
    found += drained(merge, now=now + idle)
    while merge.depth:  # an input that became empty just now is waited for again
        now += idle
        found += drained(merge, now=now + idle)
    for index, each in enumerate(given):
        assert [offset for name, offset in found if name == index] == list(range(len(each)))


@pytest.mark.parametrize("limited", [True, False])
def test_a_record_from_the_future_holds_its_input_back_only_without_a_limit(limited: bool) -> None:
    merge = Merge([0, 0], order="time", idle=0.0, latest=(lambda: 100) if limited else None)
    merge.add(0, [message(0, offset, time) for offset, time in enumerate((1, 4_102_444_800_000, 5, 6))])
    merge.add(1, [message(1, offset, time) for offset, time in enumerate(range(2, 9))])
    came = [(each.input, each.offset()) for each in merge.next(100, 0.0)]
    second = [(1, offset) for offset in range(7)]
    assert came == ([(0, 0), (0, 1), *second[:3], (0, 2), second[3], (0, 3)] if limited else [(0, 0), *second]), (
        "without a limit the rest waits for more of the second input"
    )
