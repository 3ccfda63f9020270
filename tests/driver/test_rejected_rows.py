"""Rows that the sinks' database refuses, and the policy for them: only the record that put one is dead-lettered."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import events, with_interval

from statehold import Handler, Policy, Record, Sink, Table, Timer, dead_letter, park, retry
from statehold.bound.sink import BadRow, DatabaseTrouble, PartitionSink, Rows
from statehold.errors import OutcomeUnknown, SinkRefused, TooManyFailures, TransactionAborted
from statehold.testing import Driver

#: an amount that a constraint of the database does not allow
BAD = 13


class Pay(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Booking(msgspec.Struct, frozen=True):
    account: str
    number: int
    amount: int


class Quote(msgspec.Struct, frozen=True):
    id: int
    price: float


class Ledger(Handler[Pay]):
    """Knows nothing of the constraint."""

    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {SinkRefused: dead_letter(ordered=False)}
    numbers = Table(key=str, value=int)
    bookings = Sink("bookings", value=Booking, key=("account", "number"))

    def on_record(self, record: Record[Pay]) -> None:
        self._book(record.value.account, record.value.amount)
        if record.value.amount == 50:
            self.schedule(record.timestamp + 3000, record.value.account)

    def on_command(self, command: str, record: Record[bytes]) -> None:
        self._book(command, int(record.value))

    def on_timer(self, timer: Timer) -> None:
        self._book(timer.payload, 51)

    def _book(self, account: str, amount: int) -> None:
        number = self.numbers[account] = self.numbers.get(account, 0) + 1
        self.bookings.put(Booking(account, number, amount))


class Ordered(Ledger):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {SinkRefused: dead_letter()}


class Trying(Ledger):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {
        SinkRefused: retry(3, seconds=0.01).then(dead_letter(ordered=False))
    }


class Parking(Ledger):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {SinkRefused: park()}


class Other(Ledger):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {ConnectionError: dead_letter()}


class Without(Ledger):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {}


def ledger(kind: type[Handler[Pay]] = Ledger, **options: Any) -> Driver:
    driver = Driver(kind, autocommit=False, **{"batch": 50, **options})
    driver.database.refuses = lambda table, row: "check constraint" if row["amount"] == BAD else ""
    return driver


def pay(driver: Driver, *amounts: int, account: str = "ann") -> None:
    for amount in amounts:
        driver.feed(Pay(account, amount), key=account)


def booked(driver: Driver) -> dict[str, list[int]]:
    """Amounts by account, in the order of their numbers, which have no hole."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in driver.rows("bookings"):
        found[row.account].append(row.amount)
        assert row.number == len(found[row.account])
    return found


def dead_lettered(driver: Driver) -> list[int]:
    return [letter.offset for letter in driver.dead_letters()]


@pytest.mark.parametrize("found", [True, False], ids=["row known", "by halves"])
@pytest.mark.parametrize("bad", [0, 1, 17, 38, 39], ids=str)
def test_one_rejected_row_among_many_is_found_and_the_others_are_booked(bad: int, found: bool) -> None:
    driver = ledger()
    driver.database.finds_rows = found
    amounts = [BAD if number == bad else 100 + number for number in range(40)]
    pay(driver, *amounts)
    driver.commit()
    assert dead_lettered(driver) == [bad]
    assert booked(driver)["ann"] == [amount for amount in amounts if amount != BAD]
    (letter,) = driver.dead_letters()
    assert (letter.error, letter.attempts) == ("SinkRefused", 1)
    assert "check constraint" in letter.text
    assert driver.database.commits < (4 if found else 15), "not one by one"
    assert driver.database.connections == 1
    driver.restore()
    pay(driver, 7)
    driver.commit()
    assert booked(driver)["ann"][-1] == 7


class InBatches(Handler[Pay]):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {SinkRefused: dead_letter(ordered=False)}
    numbers = Table(key=str, value=int)
    bookings = Sink("bookings", value=Booking, key=("account", "number"))

    def on_batch(self, records: Sequence[Record[Pay]]) -> None:
        for record in records:
            account = record.value.account
            number = self.numbers[account] = self.numbers.get(account, 0) + 1
            self.bookings.put(Booking(account, number, record.value.amount))


def test_a_batch_is_handled_record_by_record_to_find_the_one_that_put_the_row() -> None:
    driver = ledger(InBatches)
    pay(driver, *range(10), BAD, *range(20, 30))
    driver.commit()
    assert dead_lettered(driver) == [10]
    assert booked(driver)["ann"] == [*range(10), *range(20, 30)]
    assert driver.database.commits == 3


def test_the_record_of_a_found_row_is_committed_if_its_row_is_accepted_alone() -> None:
    """Its row refers to one of an earlier record, and the sinks' order puts that one later in a transaction."""
    driver = ledger()

    def follows(table: str, row: dict[str, Any]) -> str:
        known = driver.database.tables.get(table, {})
        return "foreign key" if row["amount"] == BAD and ("ann", row["number"] - 1) not in known else ""

    driver.database.refuses = follows
    pay(driver, 1, 2, BAD, 3, BAD, 4)
    driver.commit()
    assert dead_lettered(driver) == []
    assert booked(driver)["ann"] == [1, 2, BAD, 3, BAD, 4]


class Twice(Ledger):
    """A later record of the transaction replaces the row."""

    def on_record(self, record: Record[Pay]) -> None:
        self.bookings.put(Booking(record.value.account, 1, record.value.amount))
        self.numbers[record.value.account] = 1


def test_the_row_of_the_last_record_that_put_its_key_is_searched() -> None:
    driver = ledger(Twice)
    pay(driver, 1, 2, BAD)
    pay(driver, 5, BAD, 6, account="bob")
    driver.commit()
    assert dead_lettered(driver) == [2]
    assert booked(driver) == {"ann": [2], "bob": [6]}


class Drifting(Ledger):
    """Puts another row each time it handles the record, so no search by the row finds it."""

    calls = 0

    def on_record(self, record: Record[Pay]) -> None:
        type(self).calls += 1
        amount = record.value.amount
        self._book(record.value.account, -type(self).calls if amount == BAD else amount)


def test_a_row_that_no_record_puts_again_is_searched_by_halves() -> None:
    driver = ledger(Drifting)
    driver.database.refuses = lambda table, row: "negative" if row["amount"] < 0 else ""
    pay(driver, *range(10), BAD, *range(20, 30))
    driver.commit()
    assert dead_lettered(driver) == [10]
    assert booked(driver)["ann"] == [*range(10), *range(20, 30)]


def test_a_value_that_differs_from_itself_is_found() -> None:
    bound = PartitionSink(Sink("quotes", value=Quote, key=("id",))).bind()
    bound.put(Quote(1, math.nan))
    bound.put(Quote(2, 1.0))
    bound.delete(3)
    wanted = Rows("quotes", ("id", "price"), ("id",), [(1, float("nan"))], [])
    assert bound.holds(wanted)
    assert not bound.holds(wanted._replace(puts=[(2, 2.0)]))
    assert not bound.holds(wanted._replace(puts=[(3, 2.0)]))
    assert not bound.holds(wanted._replace(puts=[(4, 2.0)]))
    assert bound.holds(wanted._replace(puts=[], deletes=[(3,)]))


def test_several_rejected_rows_in_one_transaction() -> None:
    driver = ledger()
    pay(driver, 1, BAD, 2, BAD, BAD, 3)
    pay(driver, 4, BAD, account="bob")
    driver.commit()
    assert dead_lettered(driver) == [1, 3, 4, 7]
    assert booked(driver) == {"ann": [1, 2, 3], "bob": [4]}
    driver.replay()


def test_later_records_of_the_key_follow_where_that_is_said() -> None:
    driver = ledger(Ordered)
    pay(driver, 1, BAD, 2)
    pay(driver, 3, account="bob")
    driver.commit()
    assert [(letter.offset, letter.why) for letter in driver.dead_letters()] == [(1, "raised"), (2, "followed")]
    assert booked(driver) == {"ann": [1], "bob": [3]}
    driver.database.refuses = lambda table, row: ""
    driver.release("ann")
    driver.advance(1)
    assert dead_lettered(driver) == []
    assert booked(driver) == {"ann": [1, BAD, 2], "bob": [3]}


def test_tries_in_place_come_first() -> None:
    """A row that another one must come before, say: it is there at the third try."""
    driver = ledger(Trying)
    left = [4]

    def passing(table: str, row: dict[str, Any]) -> str:
        if row["amount"] == BAD and left[0] > 0:
            left[0] -= 1
            return "foreign key"
        return ""

    driver.database.refuses = passing
    pay(driver, 1, BAD, 2)
    driver.commit()
    assert dead_lettered(driver) == []
    assert booked(driver)["ann"] == [1, BAD, 2]
    driver.database.refuses = lambda table, row: "foreign key" if row["amount"] == BAD else ""
    pay(driver, 4, BAD, 5)
    driver.commit()
    (letter,) = driver.dead_letters()
    assert (letter.offset, letter.attempts) == (4, 4)
    assert booked(driver)["ann"] == [1, BAD, 2, 4, 5]


@pytest.mark.parametrize("kind", [Parking, Other], ids=["park", "no policy of its own"])
def test_the_error_names_the_record_where_park_pauses_the_partition(kind: type[Ledger]) -> None:
    driver = ledger(kind)
    pay(driver, 1, 2, BAD, 3)
    with pytest.raises(SinkRefused, match=r"input\[0\]@2: .* check constraint"):
        driver.commit()
    assert driver.database.held[0].position == 2
    driver.database.refuses = lambda table, row: ""
    driver.restore()
    driver.commit()
    assert booked(driver)["ann"] == [1, 2, BAD, 3]


def test_without_policies_no_bisection_runs() -> None:
    driver = ledger(Without)
    pay(driver, 1, 2, BAD, 3)
    with pytest.raises(SinkRefused, match=r"input\[0\]@0: "):
        driver.commit()
    assert driver.database.commits == 0


def test_a_rejection_of_every_row_is_an_outage() -> None:
    driver = ledger()
    pay(driver, *[BAD] * 40)
    with pytest.raises(TooManyFailures, match="in a row"):
        driver.commit()
    driver.database.refuses = lambda table, row: ""
    driver.restore()
    driver.commit()
    assert len(booked(driver)["ann"]) + len(driver.dead_letters()) == 40


def test_a_dead_letter_that_is_rejected_once_more_waits_on() -> None:
    """With another one, a user's command and a record in the same transaction, each as it deserves.

    The commands are before the record then: records that come without an end do not keep them waiting.
    """
    driver = ledger()
    pay(driver, 1, BAD)
    pay(driver, BAD, 2, account="bob")
    driver.commit()
    assert dead_lettered(driver) == [1, 2]
    driver.database.refuses = lambda table, row: "still" if row["amount"] == BAD and row["account"] == "ann" else ""
    assert driver.release() == 2
    driver.command("bob", b"8", via_control_topic=True)
    pay(driver, 3, account="bob")
    driver.commit()
    driver.advance(5)
    assert dead_lettered(driver) == [1]
    assert booked(driver) == {"ann": [1], "bob": [2, BAD, 8, 3]}
    assert len(events(driver, "replay_failed")) == 1
    driver.release(discard=True)
    driver.advance(5)
    assert dead_lettered(driver) == []


def test_a_dead_letter_in_the_transaction_of_a_rejected_record_is_not_blamed() -> None:
    driver = ledger()
    pay(driver, BAD)
    driver.commit()
    driver.database.refuses = lambda table, row: "no" if row["amount"] == 14 else ""
    driver.release()
    pay(driver, 14, account="bob")
    driver.commit()
    assert dead_lettered(driver) == [1]
    assert booked(driver) == {"ann": [BAD]}
    assert not events(driver, "replay_failed")


def test_a_dead_letter_and_a_tick_in_one_transaction() -> None:
    driver = ledger()
    pay(driver, 50, BAD)
    driver.commit()
    driver.release()
    driver.clock.advance(20)
    driver.advance(10)
    assert dead_lettered(driver) == [1]
    assert booked(driver) == {"ann": [50, 51]}


def test_a_stop_during_a_bisection_keeps_the_good_records() -> None:
    driver = ledger()
    pay(driver, BAD)
    driver.commit()
    driver.release()
    pay(driver, 3, BAD, 4)
    driver.stop()
    driver.restore()
    driver.commit()
    driver.advance(5)
    assert dead_lettered(driver) == [0, 2]
    assert booked(driver) == {"ann": [3, 4]}


def test_a_row_rejected_once_and_in_no_half_fails_no_record() -> None:
    driver = ledger()
    pay(driver, 1, 2)
    driver.database.fail("commit", BadRow("two of them at once"))
    driver.commit()
    assert dead_lettered(driver) == []
    assert booked(driver)["ann"] == [1, 2]


def test_a_row_is_found_even_when_the_producer_is_replaced_after_its_rejection() -> None:
    driver = ledger()
    pay(driver, 1, BAD, 2)
    driver.broker.fail("abort", OutcomeUnknown("?"))
    driver.commit()
    assert dead_lettered(driver) == [1]
    assert booked(driver)["ann"] == [1, 2]


class Both(Ledger):
    """The next record fails for as long as it is handled while the one before it commits."""

    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {
        SinkRefused: retry(3, seconds=0.01).then(dead_letter(ordered=False)),
        ConnectionError: retry(3, seconds=0.01).then(dead_letter(ordered=False)),
    }

    def on_record(self, record: Record[Pay]) -> None:
        if record.value.amount == 99:
            raise ConnectionError("away")
        super().on_record(record)


def test_another_record_s_failures_do_not_restart_a_record_s_tries() -> None:
    driver = ledger(Both)
    pay(driver, 1, BAD, 99, 2)
    driver.commit()
    assert [(letter.offset, letter.attempts) for letter in driver.dead_letters()] == [(1, 4), (2, 4)]
    assert booked(driver)["ann"] == [1, 2]


def test_a_command_of_the_control_topic_has_no_policy() -> None:
    driver = ledger()
    driver.command("ann", b"13", via_control_topic=True)
    pay(driver, 1, account="bob")
    with pytest.raises(SinkRefused, match="check constraint"):
        driver.advance(5)
    driver.database.refuses = lambda table, row: ""
    driver.restore()
    driver.advance(5)
    assert booked(driver) == {"ann": [BAD], "bob": [1]}


def test_a_command_in_the_input_is_a_record() -> None:
    driver = ledger()
    pay(driver, 1)
    driver.command("ann", b"13")
    pay(driver, 2)
    driver.commit()
    assert dead_lettered(driver) == [1]
    assert booked(driver)["ann"] == [1, 2]


def test_a_timers_row_fails_the_partition_at_a_tick() -> None:
    driver = ledger()
    pay(driver, 50)
    driver.commit()
    driver.database.refuses = lambda table, row: "no" if row["amount"] == 51 else ""
    with pytest.raises(SinkRefused):
        driver.advance(20)
    driver.database.refuses = lambda table, row: ""
    driver.restore()
    driver.advance(20)
    assert booked(driver)["ann"] == [50, 51]


def restart(driver: Driver) -> None:
    driver.crash()
    driver.restore()


ACTIONS: dict[str, Any] = {
    "commit": Driver.commit,
    "crash": restart,
    "takeover": Driver.restore,
    "rebalance": Driver.rebalance,
    "full": Driver.take_full,
    "wait": lambda driver: driver.advance(1.0),
    "command": lambda driver: driver.command("cmd", b"9", via_control_topic=True),
    "release": Driver.release,
    "discard": lambda driver: driver.release(discard=True),
}

steps = st.lists(
    st.one_of(
        st.builds(Pay, account=st.sampled_from("abc"), amount=st.sampled_from([1, 2, BAD])),
        st.sampled_from(sorted(ACTIONS)),
        st.tuples(st.just("kafka"), st.sampled_from(["offsets", "commit", "abort", "fence"]), st.booleans()),
        st.tuples(st.just("database"), st.sampled_from(["commit", "take", "connect"]), st.booleans()),
        st.tuples(st.just("die at"), st.sampled_from(["kafka", "database"]), st.booleans()),
        st.just(("strict", False)),
        st.just(("strict", True)),
        st.tuples(st.just("finds"), st.booleans()),
    ),
    max_size=40,
)


def apply(driver: Driver, step: Any) -> None:
    match step:
        case Pay():
            driver.feed(step, key=step.account)
        case str():
            ACTIONS[step](driver)
        case ("kafka", call, after):
            error: Exception = OutcomeUnknown("x") if call in ("commit", "abort") else TransactionAborted("x")
            driver.broker.fail(call, error, after=after)
        case ("database", call, after):
            driver.database.fail(call, DatabaseTrouble("x"), after=after)
        case ("die at", "kafka", after):
            driver.broker.fail("commit", KeyboardInterrupt(), after=after)
        case ("die at", _, after):
            driver.database.fail("commit", KeyboardInterrupt(), after=after)
        case ("finds", finds):
            driver.database.finds_rows = finds
        case ("strict", strict):
            driver.database.refuses = lambda table, row: "no" if strict and row["amount"] == BAD else ""


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    steps=steps,
    kind=st.sampled_from([Ledger, Ordered, Trying]),
    interval=st.sampled_from(["commit", 0.5]),
    batch=st.sampled_from([1, 3, 7]),
)
@example(steps=[Pay("a", BAD), "command", "wait"], kind=Ledger, interval="commit", batch=1)
def test_any_history_books_each_payment_once_or_dead_letters_it(
    steps: list[Any], kind: type[Ledger], interval: Any, batch: int
) -> None:
    """Crashes and faults of both at any call, while the constraint comes and goes."""
    driver = ledger(kind, batch=batch, delta_interval=interval)
    driver.commit_record()
    fed: list[Pay] = []
    for step in steps:
        if isinstance(step, Pay):
            fed.append(step)
        try:
            apply(driver, step)
        except (TransactionAborted, OutcomeUnknown, SinkRefused, TooManyFailures, KeyboardInterrupt):
            inside.forget_faults(driver.broker)
            inside.forget_faults(driver.database)
            driver.database.refuses = lambda table, row: ""
            driver.restore()
    inside.forget_faults(driver.broker)
    inside.forget_faults(driver.database)
    driver.database.refuses = lambda table, row: ""
    with_interval(driver, interval)
    driver.restore()
    driver.commit()
    driver.advance(5)
    for _ in range(10):
        driver.release()
        driver.advance(5)
    books, discarded = booked(driver), _discarded(driver)
    assert dead_lettered(driver) == []
    for account in "abc":
        here = [offset for offset, each in enumerate(fed) if each.account == account and offset not in discarded]
        paid = [fed[offset].amount for offset in here]
        assert sorted(books[account]) == sorted(paid)
        if kind is Ordered:
            assert books[account] == paid
    assert driver.table("numbers") == {account: len(rows) for account, rows in books.items() if rows}
    restart(driver)
    assert driver.table("numbers") == {account: len(rows) for account, rows in books.items() if rows}
    if "full" not in steps:  # several of them truncate the marks that a replay of everything needs
        driver.replay()


def _discarded(driver: Driver) -> set[int]:
    found = set()
    for message in driver.broker.log(driver.names.dead, 0).committed():
        headers = dict(message.headers() or ())
        if message.value() is None and b"dlq-discarded" in (headers.get("statehold-command") or b""):
            found.add(int(headers["statehold-dead-offset"] or b"-1"))
    return found
