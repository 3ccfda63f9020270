"""Dead letters in the driver: the key's order, what the state remembers, replays, and the limits."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from tests.driver.apps import Interval

from holdfast import Handler, Output, Record, Table
from holdfast.errors import TooManyFailures, UndecodableRecord
from holdfast.failures import dead_letter, retry
from holdfast.letters import DISCARDED, FAILED_AGAIN, PARKED, Letter, Trace, read
from holdfast.testing import Driver

DELTAS: list[Interval] = ["commit", 5.0]


class Posting(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Down(ConnectionError):
    """The other side does not answer."""


class Book(Handler[Posting]):
    on_failure: ClassVar = {
        ValueError: dead_letter(),
        ConnectionError: retry(2, seconds=0.2).then(dead_letter()),
        UndecodableRecord: dead_letter(),
    }
    balances = Table(key=str, value=int)
    lines = Output("lines", value=str)
    refused: ClassVar[set[int]] = set()
    down = 0

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        balance = self.balances.get(posting.account, 0) + posting.amount
        self.balances[posting.account] = balance
        self.lines.send(f"{posting.account} {posting.amount}", key=posting.account)
        if posting.amount in Book.refused:
            raise ValueError(f"{posting.amount} is refused")
        if Book.down > 0:
            Book.down -= 1
            raise Down("no answer")


@pytest.fixture(autouse=True)
def _as_new() -> None:
    Book.refused, Book.down = set(), 0


def letters(driver: Driver) -> list[Letter]:
    return [each for each in found(driver) if isinstance(each, Letter)]


def found(driver: Driver) -> list[object]:
    driver.commit()
    return [read(message) for message in driver.broker.log(driver.names.dead, 0).committed()]


def post(driver: Driver, account: str, amount: int) -> int:
    return driver.feed(Posting(account, amount), key=account)


@pytest.mark.parametrize("interval", DELTAS)
def test_later_records_of_the_key_follow_and_others_go_on(interval: Interval) -> None:
    Book.refused = {13}
    driver = Driver(Book, delta_interval=interval)
    for account, amount in (("ann", 1), ("ann", 13), ("bob", 2), ("ann", 3), ("ann", 13), ("bob", 4)):
        post(driver, account, amount)
    assert driver.table("balances") == {"ann": 1, "bob": 6}
    assert driver.outputs("lines") == ["ann 1", "bob 2", "bob 4"]
    assert [(each.offset, each.why, each.previous) for each in letters(driver)] == [
        (1, "raised", -1),
        (3, "followed", 1),
        (4, "followed", 3),
    ]
    first = letters(driver)[0]
    assert (first.error, first.text, first.attempts, first.topic) == ("ValueError", "13 is refused", 1, "input")
    assert first.value == b'{"account":"ann","amount":13}'
    assert driver.table(PARKED)[b"ann"].waiting == 3
    driver.crash()
    Book.refused = set()  # it would work now: what was decided stays decided
    driver.restore()
    assert driver.table("balances") == {"ann": 1, "bob": 6}
    assert driver.table(PARKED)[b"ann"].waiting == 3
    post(driver, "ann", 5)
    assert [each.offset for each in letters(driver)] == [1, 3, 4, 6]


@pytest.mark.parametrize("interval", DELTAS)
def test_a_released_key_is_handled_in_its_order_once_and_a_replay_does_the_same(interval: Interval) -> None:
    Book.refused = {13}
    driver = Driver(Book, delta_interval=interval)
    for amount in (1, 13, 2, 3):
        post(driver, "ann", amount)
    Book.refused = set()
    assert driver.release("ann", why="mended") == 3
    driver.release("ann")  # asked for twice: the second one finds nothing to do
    post(driver, "ann", 4)  # handled before the commands: it follows, too
    driver.commit()
    assert driver.outputs("lines") == ["ann 1", "ann 13", "ann 2", "ann 3"]
    assert [each.offset for each in driver.letters()] == [4]
    assert driver.release("ann") == 1
    driver.advance(1)
    post(driver, "ann", 5)
    assert driver.outputs("lines") == ["ann 1", "ann 13", "ann 2", "ann 3", "ann 4", "ann 5"]
    assert driver.table("balances") == {"ann": 28}
    assert driver.table(PARKED) == {}
    driver.replay()
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": 28}


def test_a_letter_that_fails_again_stays_at_the_head_of_its_key() -> None:
    Book.refused = {13}
    driver = Driver(Book)
    for amount in (1, 13, 2):
        post(driver, "ann", amount)
    post(driver, "bob", 7)
    driver.release("ann")
    driver.advance(1)
    assert driver.outputs("lines") == ["ann 1", "bob 7"]
    assert [each.offset for each in driver.letters()] == [1, 2]
    traces = [each for each in found(driver) if isinstance(each, Trace)]
    assert [(each.what, each.offset, each.error, each.who) for each in traces] == [
        (FAILED_AGAIN, 1, "ValueError", "driver")
    ]
    assert driver.release("ann", discard=True, why="test data") == 2
    driver.advance(1)
    assert driver.letters() == []
    traces = [each for each in found(driver) if isinstance(each, Trace)]
    assert [(each.what, each.offset, each.why) for each in traces[1:]] == [
        (DISCARDED, 1, "test data"),
        (DISCARDED, 2, "test data"),
    ]
    post(driver, "ann", 5)
    assert driver.table("balances") == {"ann": 6, "bob": 7}
    driver.replay()


def test_a_retry_in_place_keeps_the_order_and_ends_in_a_letter() -> None:
    Book.down = 2
    driver = Driver(Book)
    post(driver, "ann", 1)
    post(driver, "ann", 2)
    assert driver.outputs("lines") == ["ann 1", "ann 2"]
    Book.down = 3
    post(driver, "bob", 3)
    assert [(each.offset, each.error, each.attempts) for each in driver.letters()] == [(2, "Down", 3)]
    assert [event for event, _ in driver.events].count("record_retried") == 4


def test_what_failed_and_then_worked_may_fail_again_in_a_replay() -> None:
    Book.down = 1
    driver = Driver(Book, delta_interval=60.0)
    post(driver, "ann", 1)
    driver.commit()
    driver.crash()
    Book.down = 2
    driver.restore()
    assert driver.table("balances") == {"ann": 1}
    assert Book.down == 0


def test_an_undecodable_record_and_one_without_a_key() -> None:
    Book.refused = {13}
    driver = Driver(Book)
    driver.feed(b"no json", key="ann", headers=[("trace", b"t-1")])
    driver.feed(Posting("ann", 13))
    driver.feed(Posting("ann", 13))
    post(driver, "ann", 1)
    found = driver.letters()
    assert [(each.offset, each.error, each.ordered) for each in found] == [
        (0, "UndecodableRecord", True),
        (1, "ValueError", False),
        (2, "ValueError", False),
        (3, "UndecodableRecord", True),
    ]
    assert (found[0].value, found[0].headers) == (b"no json", (("trace", b"t-1"),))
    Book.refused = set()
    driver.release()
    driver.release()
    driver.advance(1)  # the one without a key is replayed once, whoever asks twice
    assert driver.outputs("lines") == ["ann 13", "ann 13"]
    assert [each.offset for each in driver.letters()] == [0, 3]


def test_a_flood_of_failures_is_an_outage() -> None:
    Book.refused = {13}
    driver = Driver(Book)
    for number in range(20):
        post(driver, f"k{number}", 13)
    with pytest.raises(TooManyFailures, match="21 records in a row"):
        post(driver, "last", 13)
    assert len(driver.letters()) == 20
    Book.refused = set()
    driver.restore()
    assert driver.outputs("lines") == ["last 13"]


def test_the_share_of_failures_is_limited_too() -> None:
    Book.refused = {13}
    driver = Driver(Book)
    for number in range(100):
        post(driver, f"k{number}", 13)
        post(driver, "good", 1)
    with pytest.raises(TooManyFailures, match="101 of the newest 1000"):
        post(driver, "last", 13)


def test_an_abort_takes_the_letter_and_what_it_left_in_the_state_along() -> None:
    Book.refused = {13}
    driver = Driver(Book)
    post(driver, "ann", 1)
    post(driver, "ann", 13)
    post(driver, "ann", 2)
    driver.rebalance()
    post(driver, "ann", 3)
    assert driver.table("balances") == {"ann": 1}
    assert [(each.offset, each.why) for each in letters(driver)] == [(1, "raised"), (2, "followed"), (3, "followed")]
