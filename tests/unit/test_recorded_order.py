"""The recorded order is repeated exactly; records that are missing, too many or in foreign runs stop the replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshot_records import LogReader

from statehold.api.record import MergedMessage
from statehold.common.names import Names
from statehold.errors import DamagedIncrement, RetentionGap
from statehold.ports import OutOfRange
from statehold.snapshot.format import runs
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer
from statehold.snapshot.format.runs import Run
from statehold.testing.memory.log import MemoryLog
from statehold.worker.inputs.recorded_order import RecordedOrder

NAMES = Names("service", "a", others=("b", "c"))
PLACE = Place(NAMES, 0, 4, {}, Writer(instance="test"))


def logs(*counts: int) -> list[MemoryLog]:
    found = [MemoryLog(topic, 0) for topic in NAMES.inputs]
    for log, count in zip(found, counts, strict=True):
        for number in range(count):
            log.append(b"%d" % number)
    return found


def order(logs: list[MemoryLog], begin: tuple[int, ...], end: tuple[int, ...]) -> RecordedOrder:
    readers = [LogReader(log, batch=2) for log in logs]
    positions = (dict(zip(NAMES.inputs, each, strict=True)) for each in (begin, end))
    return RecordedOrder(readers, PLACE, *positions)


def repeated(found: Iterator[list[MergedMessage]]) -> list[tuple[int, int | None, int]]:
    return [(each.input, each.offset(), each.at) for batch in found for each in batch]


def packed(indexes: list[int]) -> bytes:
    return runs.pack(Run(index, 1) for index in indexes)


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=6), st.tuples(*[st.integers(0, 3)] * 3))
def test_any_order_of_any_transactions_is_repeated(transactions: list[list[int]], begin: tuple[int, int, int]) -> None:
    handled = [index for each in transactions for index in each]
    end = tuple(at + handled.count(index) for index, at in enumerate(begin))
    found = repeated(order(logs(*end), begin, end).batches(map(packed, transactions)))
    reached, wanted = list(begin), []
    for index in handled:
        wanted.append((index, reached[index], sum(reached)))
        reached[index] += 1
    assert found == wanted


def test_places_count_the_gaps_of_offsets() -> None:
    written = logs(3, 2, 0)
    written[0].abort_record(1)
    found = repeated(order(written, (0, 0, 0), (3, 2, 0)).batches([packed([0, 1, 0, 1])]))
    assert found == [(0, 0, 0), (1, 0, 1), (0, 2, 3), (1, 1, 4)]


def test_long_runs_come_in_batches() -> None:
    batches = list(order(logs(1200, 0, 1), (0, 0, 0), (1200, 0, 1)).batches([runs.pack([Run(0, 1200), Run(2, 1)])]))
    assert [len(each) for each in batches] == [500, 500, 201]


@pytest.mark.parametrize(
    ("recorded", "topic", "at", "what"),
    [
        ([0, 0, 0, 1], "a", 2, "fewer records"),
        ([0, 0], "b", 0, "more records"),
        ([0, 1], "a", 1, "more records"),
        ([], "a", 0, "more records"),
        ([2, 0, 0, 1], "c", 0, "fewer records"),
    ],
)
def test_records_that_do_not_fit_stop_the_replay_and_name_their_input(
    recorded: list[int], topic: str, at: int, what: str
) -> None:
    with pytest.raises(RetentionGap, match=what) as caught:
        repeated(order(logs(2, 1, 0), (0, 0, 0), (2, 1, 0)).batches([packed(recorded)]))
    assert (caught.value.topic, caught.value.partition, caught.value.position) == (topic, 0, at)


def test_a_deleted_record_stops_the_replay() -> None:
    written = logs(3, 3, 0)
    written[1].truncate(2)
    with pytest.raises(OutOfRange, match=r"b\[0\]"):
        repeated(order(written, (0, 1, 0), (3, 3, 0)).batches([packed([0, 1, 0, 1, 0])]))


def test_an_enormous_run_ends_with_the_records() -> None:
    found = order(logs(3, 0, 0), (0, 0, 0), (3, 0, 0)).batches([b"\x00" + b"\xff" * 8 + b"\x7f"])
    with pytest.raises(RetentionGap, match="fewer records"):
        repeated(found)


@given(st.lists(st.binary(max_size=12), max_size=3))
def test_foreign_runs_raise_only_declared_errors_and_repeat_no_record_twice(recorded: list[bytes]) -> None:
    found: list[tuple[int, int | None]] = []
    reading = order(logs(3, 2, 1), (0, 0, 0), (3, 2, 1)).batches(recorded)
    try:
        for batch in reading:
            found += [(each.input, each.offset()) for each in batch]
    except (DamagedIncrement, RetentionGap):
        assert len(found) <= 6
    else:
        assert len(found) == 6
    assert len(set(found)) == len(found)
