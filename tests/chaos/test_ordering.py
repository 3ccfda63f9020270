"""The checkers of two inputs, without a broker: each break of the order is found by its name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.chaos import schedule
from tests.chaos.chain import StateAt
from tests.chaos.ordering import Order, check_runs, check_times, order_of, runs
from tests.chaos.workload import EVERYTHING, Sent, Trade, fold
from tests.support import frames

TOPICS = ["a", "b"]


def sent(index: int, offset: int, *, time: int = 0, at: float = 0.0) -> Sent:
    number = 10 * index + offset
    return Sent(offset, Trade(f"t{number}", f"a{number % 2}", "X", "BUY", 1, number + 1, 0), at, index, time)


#: three records of each input, handled in two transactions
SENTS = [sent(index, offset) for index in (0, 1) for offset in range(3)]
OUTPUTS = [(1, 0, "t0"), (1, 1, "t10"), (1, 2, "t11"), (2, 0, "t1"), (2, 1, "t2"), (2, 2, "t12")]


def ordered(outputs: list[tuple[int, int, str]], committed: tuple[int, int] = (3, 3)) -> Order:
    return order_of(0, SENTS, outputs, committed)


def test_the_order_of_the_outputs_is_that_of_the_records_and_places_count_both_inputs() -> None:
    order = ordered(list(reversed(OUTPUTS)))
    assert [each.trade.id for each in order.sents] == [name for _, _, name in OUTPUTS]
    assert [each.offset for each in order.sents] == list(range(6))
    assert order.places[1, 2] == 5
    assert order.findings == {}


def test_a_record_that_was_passed_over_is_lost_and_one_behind_the_positions_waits() -> None:
    order = ordered([OUTPUTS[0], OUTPUTS[1], OUTPUTS[4]], committed=(3, 1))
    assert [(each.trade.id, each.offset) for each in order.sents] == [
        ("t0", 0),
        ("t10", 1),
        ("t1", 2),  # has no output
        ("t2", 3),
        ("t11", 4),  # waits
        ("t12", 5),
    ]
    assert fold({0: order.sents}, {0: 4}).times.total() == 4


def test_an_input_out_of_its_order_is_found() -> None:
    swapped = [(1, 0, "t1"), (1, 1, "t0"), *OUTPUTS[1:3], *OUTPUTS[4:]]
    assert ordered(swapped).findings.keys() == {"reordered"}


def commit_record(n: int, a: int, b: int, recorded: list[int], **more: Any) -> dict[str, Any]:
    return {"n": n, "positions": {"a": a, "b": b}, "inputs": TOPICS, "runs": bytes(recorded)} | more


RECORDS = [commit_record(0, 0, 0, []), commit_record(1, 1, 2, [0, 1, 1, 2]), commit_record(2, 3, 3, [0, 2, 1, 1])]


def test_runs_that_are_the_order_of_the_outputs_are_right() -> None:
    order = ordered(OUTPUTS)
    check_runs(order, RECORDS, TOPICS)
    assert order.findings == {}


@pytest.mark.parametrize(
    ("number", "changed", "reported"),
    [
        (1, {"runs": b""}, "keeps the runs []"),
        (1, {"runs": bytes([1, 2, 0, 1])}, "keeps the runs"),
        (2, {"runs": bytes([0, 3])}, "keeps the runs"),
        (2, {"positions": {"a": 3, "b": 2}}, "not handled all of b between its positions"),
        (2, {"inputs": ["a"]}, "names the inputs"),
    ],
)
def test_a_commit_record_that_does_not_keep_the_order_is_found(
    number: int, changed: dict[str, Any], reported: str
) -> None:
    order, records = ordered(OUTPUTS), list(RECORDS)
    records[number] = records[number] | changed
    check_runs(order, records, TOPICS)
    assert order.findings.keys() == {"order lost"}
    assert any(reported in text for text in order.findings["order lost"])


def test_lengths_of_runs_are_read_as_the_format_says() -> None:
    assert list(runs(bytes([0, 127, 1, 0x80, 1, 0, 0xFF, 0xFF, 3]))) == [(0, 127), (1, 128), (0, 65535)]


def timed(order: str, times: dict[str, int], at: float = 1.0, born: float = 2.0) -> dict[str, list[str]]:
    """Findings of records `a0 b0 ...` that were acknowledged at `at`, handled by a process that began at `born`."""
    names = order.split()
    sents = {name: sent("ab".index(name[0]), int(name[1:]), time=times[name], at=at) for name in names}
    outputs = [(1, ordinal, sents[name].trade.id) for ordinal, name in enumerate(names)]
    found = order_of(0, sents.values(), outputs, (9, 9))
    assert check_times(found, {1: 77}, {77: born}) > 0 or at >= born
    return found.findings


TIMES = {"a0": 5, "a1": 9, "b0": 3, "b1": 5}


def test_a_merge_by_time_is_right_and_any_other_order_of_known_records_is_found() -> None:
    assert timed("b0 a0 b1 a1", TIMES) == {}
    for wrong in ("a0 b0 b1 a1", "b0 a0 a1 b1"):
        assert timed(wrong, TIMES).keys() == {"not merged by time"}


def test_of_equal_times_the_first_input_comes_first() -> None:
    assert timed("b0 b1 a0 a1", TIMES).keys() == {"not merged by time"}


def test_a_record_that_came_after_the_start_of_the_process_may_come_late() -> None:
    assert timed("a0 b0 b1 a1", TIMES, at=3.0) == {}


def test_the_state_depends_on_the_order_of_both_inputs() -> None:
    other = [(1, 0, "t10"), (1, 1, "t0"), *OUTPUTS[2:]]
    right, wrong = (StateAt(ordered(each).sents, several=True) for each in (OUTPUTS, other))
    assert right.digest(6) != wrong.digest(6)
    assert right.stored(6).keys() == {("accounts", name) for name in ("a0", "a1", EVERYTHING)}
    everything = msgspec.msgpack.decode(right.stored(6)[frames.ACCOUNTS, EVERYTHING])
    assert (everything["count"], everything["total"]) == (6, sum(each.trade.amount for each in SENTS))


def test_half_of_the_seeds_have_two_inputs_and_all_orders_occur() -> None:
    drawn = [schedule.inputs(seed) for seed in range(400)]
    assert drawn == [schedule.inputs(seed) for seed in range(400)]
    assert 160 < sum(count == 2 for count, _, _ in drawn) < 240
    assert {more for _, more, _ in drawn} == {"", *(f", two inputs {order}" for order in schedule.ORDERS)}
