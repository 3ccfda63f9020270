"""A value or a key that a table cannot store is the failure of the record that wrote it, although only the commit
encodes it: a number of thirty digits from a stranger is no reason to stop a partition that has a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from tests.support.handlers import events

from statehold import Handler, Output, Record, Table, dead_letter, retry_later
from statehold.config.sections.processing import CommitSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, UnstorableValue, UsageError
from statehold.testing import Driver

HUGE = 10**30
PRODUCTION = Settings(commit=CommitSettings(max_records=1000))


class Payment(msgspec.Struct, frozen=True):
    account: int
    cents: int


class Ledger(Handler[Payment]):
    on_failure: ClassVar[Any] = {UsageError: dead_letter()}
    balances = Table(key=int, value=int)
    booked = Output("booked", value=Payment)

    def on_record(self, record: Record[Payment]) -> None:
        payment = record.value
        self.balances[payment.account] = self.balances.get(payment.account, 0) + payment.cents
        self.booked.send(payment)


class InBatches(Ledger):
    def on_batch(self, records: Sequence[Record[Payment]]) -> None:
        for record in records:
            super().on_record(record)


class OnlyBatches(Handler[Payment]):
    on_failure: ClassVar[Any] = {UsageError: dead_letter()}
    balances = Table(key=int, value=int)
    booked = Output("booked", value=Payment)

    def on_batch(self, records: Sequence[Record[Payment]]) -> None:
        for record in records:
            self.balances[record.value.account] = self.balances.get(record.value.account, 0) + record.value.cents
            self.booked.send(record.value)


class Strict(Ledger):
    on_failure: ClassVar[Any] = {}


GOOD = [Payment(1, 5), Payment(2, 7), Payment(1, 3), Payment(3, 1)]


def driver_of(kind: type[Handler[Any]]) -> Driver:
    return Driver(kind, settings=PRODUCTION, batch=100)


@pytest.mark.parametrize("kind", [Ledger, InBatches, OnlyBatches])
@pytest.mark.parametrize("bad", [Payment(1, HUGE), Payment(HUGE, 1)], ids=["value", "key"])
@pytest.mark.parametrize("places", [[0], [2], [4], [1, 2], [0, 2, 5]], ids=str)
def test_the_record_that_wrote_it_becomes_a_dead_letter(
    kind: type[Handler[Any]], bad: Payment, places: list[int]
) -> None:
    driver, records = driver_of(kind), list(GOOD)
    for place in places:
        records.insert(place, bad)
    driver.feed_all(records)
    driver.commit()
    assert [letter.offset for letter in driver.dead_letters()] == places
    assert {letter.error for letter in driver.dead_letters()} == {"UnstorableValue"}
    assert driver.table("balances") == {1: 8, 2: 7, 3: 1}
    assert driver.outputs("booked") == GOOD
    driver.feed(Payment(2, 1))
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {1: 8, 2: 8, 3: 1}


def test_without_a_policy_the_partition_stops_at_the_record() -> None:
    driver = driver_of(Strict)
    driver.feed_all([*GOOD[:2], Payment(2, HUGE), *GOOD[2:]])
    with pytest.raises(HandlerFailed, match=r"input\[0\]@2: .*table 'balances', key 2: .* cannot be encoded") as failed:
        driver.commit()
    assert isinstance(failed.value.__cause__, UnstorableValue)
    assert driver.broker.offsets[driver.names.input, 0] == 2


def test_a_command_that_wrote_it_is_blamed_at_once() -> None:
    class Commanded(Strict):
        def on_command(self, name: str, record: Record[bytes]) -> None:
            self.balances[9] = HUGE

    driver = driver_of(Commanded)
    driver.feed_all(GOOD[:2])
    driver.command("spoil")
    driver.feed_all(GOOD[2:])
    with pytest.raises(HandlerFailed, match=r"input\[0\]@2: .*table 'balances', key 9"):
        driver.commit()
    assert driver.table("balances") == {1: 5, 2: 7}


def test_a_command_of_the_control_topic_that_wrote_it_is_named() -> None:
    class Commanded(Strict):
        def on_command(self, name: str, record: Record[bytes]) -> None:
            self.balances[9] = HUGE if record.value == b"huge" else 1

    driver = driver_of(Commanded)
    driver.feed_all(GOOD)
    driver.commit()
    driver.command("spoil", b"1", via_control_topic=True)
    driver.command("spoil", b"huge", via_control_topic=True)
    with pytest.raises(HandlerFailed, match=r"control\[0\]@1: .*table 'balances', key 9"):
        driver.advance(3)
    assert driver.broker.offsets[driver.names.input, 0] == 4


class Moody(Ledger):
    """The record is good; the value depends on what is installed."""

    on_failure: ClassVar[Any] = {UsageError: retry_later(60, any_order=True).then(dead_letter())}
    wrong = True

    def on_record(self, record: Record[Payment]) -> None:
        payment = record.value
        bad = payment.cents == 7 and type(self).wrong
        self.balances[payment.account] = HUGE if bad else self.balances.get(payment.account, 0) + payment.cents


class Redriven(Moody):
    on_failure: ClassVar[Any] = {UsageError: dead_letter(ordered=False)}


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with records of the input"])
def test_a_redriven_dead_letter_that_wrote_it_stays_one(others: bool) -> None:
    Moody.wrong = True
    driver = driver_of(Redriven)
    driver.feed_all([Payment(1, 5), Payment(2, 7), Payment(3, 7), Payment(2, 3)])
    driver.commit()
    assert [letter.offset for letter in driver.dead_letters()] == [1, 2]
    assert driver.release() == 2
    driver.command("noop", via_control_topic=True)
    if others:
        driver.feed_all([Payment(3, 1), Payment(2, 1)])
    driver.advance(5)
    assert [letter.offset for letter in driver.dead_letters()] == [1, 2]
    assert driver.table("balances") == ({1: 5, 2: 4, 3: 1} if others else {1: 5, 2: 3})
    assert len(events(driver, "replay_failed")) == 2
    Moody.wrong = False
    driver.release()
    driver.advance(5)
    assert driver.dead_letters() == []
    assert driver.table("balances") == ({1: 5, 2: 11, 3: 8} if others else {1: 5, 2: 10, 3: 7})


def test_a_record_of_a_retry_topic_that_wrote_it_goes_on_to_the_end_of_its_policy() -> None:
    Moody.wrong = True
    driver = driver_of(Moody)
    driver.feed_all([Payment(each, 7 if each % 2 else 3) for each in range(50)])
    driver.commit()
    good = dict.fromkeys(range(0, 50, 2), 3)
    assert driver.table("balances") == good
    driver.clock.advance(61)
    driver.advance(5)
    assert [letter.offset for letter in driver.dead_letters()] == list(range(1, 50, 2))
    assert {letter.error for letter in driver.dead_letters()} == {"UnstorableValue"}
    assert driver.table("balances") == good


def test_a_side_input_is_not_blamed_for_a_record_after_an_earlier_search() -> None:
    class Halved(Redriven):
        def on_record(self, record: Record[Payment]) -> None:
            payment = record.value
            bad = payment.cents == HUGE or (payment.cents == 7 and type(self).wrong)
            self.balances[9] = HUGE if bad else self.balances.get(9, 0) + payment.cents

    Moody.wrong = True
    driver = Driver(Halved, settings=PRODUCTION, batch=100, autocommit=False)
    driver.feed(Payment(1, 7))
    driver.commit()
    Moody.wrong = False

    driver.release()
    driver.feed(Payment(2, HUGE))
    driver.commit()
    driver.advance(3)
    assert [letter.offset for letter in driver.dead_letters()] == [1]
    assert not events(driver, "replay_failed")
    assert driver.table("balances") == {9: 7}


def test_what_is_written_by_neither_ends_the_search() -> None:
    class Drifting(Strict):
        calls = 0

        def on_command(self, name: str, record: Record[bytes]) -> None:
            type(self).calls += 1
            self.balances[type(self).calls] = HUGE

    driver = driver_of(Drifting)
    driver.feed_all(GOOD)
    driver.commit()
    driver.command("spoil", via_control_topic=True)
    with pytest.raises(UsageError, match="table 'balances', key 2"):
        driver.advance(3)
    assert Drifting.calls == 2
    assert driver.broker.offsets[driver.names.input, 0] == 4
