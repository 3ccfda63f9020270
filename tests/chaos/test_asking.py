"""The oracle of requests, without a broker: each anomaly is found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import msgspec
import pytest
from tests.chaos.answering import LATER, NOW, REFUSED, Booked
from tests.chaos.asker import Line, asks, payment, read_diary
from tests.chaos.asking import Diaries, check_asked, due_of
from tests.chaos.checking import Verdict
from tests.chaos.rows import Row
from tests.chaos.workload import Running, Trade

KEY = b"q1"


def asked(offset: int, name: str, address: str, kind: str = NOW, amount: int = 5) -> Row:
    """A request of the input."""
    headers = {"statehold-request": name.encode(), "statehold-reply-to": address.encode()}
    return Row(0, offset, value(name, kind, amount), None, KEY, MappingProxyType(headers))


def value(name: str, kind: str, amount: int) -> bytes:
    return msgspec.json.encode(Trade(name, "q1", kind, "BUY", 1, amount, 0))


def ordinary(offset: int, name: str) -> Row:
    return Row(0, offset, value(name, NOW, 1), None, KEY)


def effect(offset: int, name: str, total: int, count: int, n: int = 1) -> Row:
    return Row(0, offset, msgspec.json.encode(Running(name, "q1", total, count)), (0, n, offset))


def reply(
    offset: int, name: str, address: str, request: int, answer: Booked | None, outcome: str = "answered", n: int = 1
) -> Row:
    headers = {
        "statehold-reply": name.encode(),
        "statehold-reply-to": address.encode(),
        "statehold-outcome": outcome.encode(),
        "statehold-offset": b"%d" % request,
    }
    data = b'{"error":"why"}' if answer is None else msgspec.json.encode(answer)
    return Row(0, offset, data, (0, n, 100 + offset), KEY, MappingProxyType(headers))


#: one that is asked again, one with another value, one that fails, and one that is answered by the record behind it
INPUT = [
    asked(0, "p1", "a/1"),
    asked(1, "p1", "b/1"),
    asked(2, "p1", "c/1", amount=6),
    asked(3, "p2", "a/2", REFUSED),
    asked(4, "p3", "a/3", LATER),
    asked(5, "p3", "b/3", LATER),
    ordinary(6, "n3"),
]
EFFECTS = [effect(0, "p1", 5, 1), effect(1, "p3", 10, 2), effect(2, "n3", 11, 3)]
REPLIES = [
    reply(0, "p1", "a/1", 0, Booked(5, 1)),
    reply(1, "p1", "b/1", 0, Booked(5, 1)),
    reply(2, "p1", "c/1", 0, None, "conflict"),
    reply(3, "p2", "a/2", 3, None, "failed"),
    reply(4, "p3", "a/3", 4, Booked(10, 2)),
    reply(5, "p3", "b/3", 4, Booked(10, 2)),
]


#: what the askers wrote before each of these requests, and before one that a kill has kept from being sent
NOTED = [Line(number, "asks") for number in (1, 1, 1, 2, 3, 3, 3)]


def found(effects: Sequence[Row] = EFFECTS, replies: Sequence[Row] = REPLIES, given: Sequence[Row] = INPUT) -> set[str]:
    verdict = Verdict()
    check_asked(verdict.add, due_of(given), effects, replies, Diaries(1, 0, {0: NOTED}))
    return set(verdict.findings)


def test_what_the_input_determines_has_no_anomaly() -> None:
    assert found() == set()


@pytest.mark.parametrize(
    ("effects", "replies", "anomalies"),
    [
        (EFFECTS[:2], REPLIES, {"effect lost"}),
        ([*EFFECTS, effect(3, "p1", 16, 4)], REPLIES, {"took effect again"}),
        ([*EFFECTS, effect(3, "p2", 16, 4)], REPLIES, {"effect of nothing"}),
        ([EFFECTS[0], effect(1, "p3", 11, 2), EFFECTS[2]], REPLIES, {"wrong effect"}),
        (EFFECTS, REPLIES[1:], {"reply lost"}),
        (EFFECTS, [*REPLIES, reply(6, "p1", "a/1", 0, Booked(5, 1))], {"reply again"}),
        (EFFECTS, [*REPLIES, reply(6, "p9", "a/9", 9, Booked(5, 1))], {"reply to nothing"}),
        (EFFECTS, [*REPLIES, REPLIES[0]._replace(partition=1)], {"reply elsewhere"}),
        (EFFECTS, [*REPLIES, reply(6, "p2", "a/2", 3, Booked(9, 9))], {"answer without effect"}),
        (EFFECTS, [*REPLIES, reply(6, "p1", "b/1", 0, Booked(6, 1))], {"unequal answers"}),
        (
            EFFECTS,
            [reply(0, "p1", "a/1", 0, Booked(5, 1), n=2), *REPLIES[1:]],
            {"answer and effect in two transactions"},
        ),
    ],
)
def test_each_anomaly_of_effects_and_replies_is_found(
    effects: list[Row], replies: list[Row], anomalies: set[str]
) -> None:
    assert found(effects, replies) == anomalies


def test_a_request_that_is_on_the_input_twice_has_two_replies() -> None:
    """A client has written it again, because it had no acknowledgement."""
    twice = [*INPUT, INPUT[0]._replace(offset=7)]
    again = reply(6, "p1", "a/1", 0, Booked(5, 1), n=2)
    assert found(EFFECTS, [*REPLIES, again], twice) == set()
    assert (due_of(twice).requests, due_of(twice).copies) == (7, 1)


@pytest.mark.parametrize(
    ("surplus", "replies", "anomalies"),
    [
        (asked(7, "p1", "d/1"), [reply(6, "p1", "d/1", 0, Booked(5, 1), n=2)], {"request that was not asked"}),
        (asked(7, "p9", "a/9", REFUSED), [reply(6, "p9", "a/9", 7, None, "failed")], {"request that was not asked"}),
        (asked(7, "p1", "a/1", amount=6), [reply(6, "p1", "a/1", 0, None, "conflict")], {"copy of another request"}),
        (asked(7, "p3", "a/1"), [reply(6, "p3", "a/1", 4, None, "conflict")], {"return address of two requests"}),
    ],
)
def test_each_request_beyond_those_that_were_noted_is_found(
    surplus: Row, replies: list[Row], anomalies: set[str]
) -> None:
    assert found(EFFECTS, [*REPLIES, *replies], [*INPUT, surplus]) == anomalies


def diary(index: int, seed: int = 1, end: int = 1) -> tuple[Row, Booked, Line]:
    """A payment that is answered at once: its record, its answer, and what its asker notes."""
    number = next(each for each in range(end, 100) if payment(seed, each, index).symbol == NOW)
    trade = payment(seed, number, index)
    headers = MappingProxyType({"statehold-request": trade.id.encode(), "statehold-reply-to": b"a"})
    row = Row(0, 0, msgspec.json.encode(trade), None, trade.account.encode(), headers)
    answer = Booked(trade.amount, 1)
    return row, answer, Line(number, "answered", answer, 0, 0)


@pytest.mark.parametrize(
    ("changed", "anomalies"),
    [
        ({}, set()),
        ({"answer": Booked(99_999, 1)}, {"unequal answers"}),
        ({"offset": 1}, {"unequal answers"}),
        ({"what": "conflict"}, {"conflict without reason"}),
        ({"what": "failed"}, {"failure without reason"}),
        ({"what": "late", "text": "NotAnswered: of another type"}, {"answer cannot be read"}),
        ({"what": "late", "text": "NoAnswerInTime: no answer"}, set()),
    ],
)
def test_what_an_asker_has_seen_is_compared(changed: dict[str, object], anomalies: set[str]) -> None:
    row, answer, line = diary(0)
    trade = msgspec.json.decode(row.value, type=Trade)
    effects = [Row(0, 0, msgspec.json.encode(Running(trade.id, trade.account, answer.total, 1)), (0, 1, 0))]
    replies = [reply(0, trade.id, "a", 0, answer)._replace(key=row.key)]
    verdict = Verdict()
    noted = Line(line.number, "asks")
    diaries = Diaries(1, 0, {0: [noted, line, msgspec.structs.replace(line, **changed)]})
    check_asked(verdict.add, due_of([row]), effects, replies, diaries)
    assert set(verdict.findings) == anomalies


def test_an_answer_to_a_request_that_is_not_on_the_input_is_found() -> None:
    verdict = Verdict()
    check_asked(verdict.add, due_of([]), [], [], Diaries(1, 0, {0: [diary(0)[2]]}))
    assert set(verdict.findings) == {"answer without effect"}


def test_an_asker_that_has_not_come_to_an_end_is_found() -> None:
    verdict = Verdict()
    check_asked(verdict.add, due_of([]), [], [], Diaries(1, 2, {0: [], 1: [], 2: []}))
    assert set(verdict.findings) == {"never answered"}
    assert len(verdict.findings["never answered"]) == 4, "two askers of each payment"


def test_two_of_three_processes_ask_each_payment_with_one_id_and_sometimes_two_values() -> None:
    for number in range(12):
        assert sum(asks(number, index, 3) for index in range(3)) == 2
    drawn = [(payment(1, number, 0), payment(1, number, 1)) for number in range(400)]
    assert all(one.id == other.id and one.account == other.account for one, other in drawn)
    assert 10 < sum(one != other for one, other in drawn) < 60
    assert {one.symbol for one, _ in drawn} == {NOW, LATER, REFUSED}


def test_a_line_that_a_kill_cut_off_is_not_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("diary") / "diary"
    path.write_bytes(msgspec.json.encode(Line(3, "asks")) + b'\n{"number":3,"wh')
    assert read_diary(path) == [Line(3, "asks")]
