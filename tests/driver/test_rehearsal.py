"""A rehearsal over a driver's topics: failures, timers, effects, sinks, commands, several inputs, few deltas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from tests.support.handlers import Interval
from tests.support.rehearsing import compared, rehearsed, shown

from statehold import Handler, Output, Record, Reference, Sink, Table, Timer, dead_letter, on, retry, retry_later
from statehold.api.handler import EffectKey
from statehold.bound.output import with_origin
from statehold.errors import UsageError
from statehold.rehearsal.comparison import NUMBER
from statehold.rehearsal.saved_results import EarlierResults, ResultFiles, ResultsWriter
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0]


class Posting(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Row(msgspec.Struct, frozen=True):
    account: str
    balance: int


def note(key: EffectKey, text: str) -> None:
    """Do nothing, outside."""


class Bank(Handler[Posting]):
    """Uses every feature whose results a rehearsal compares. Class variables are what a release changes."""

    on_failure: ClassVar = {
        ValueError: dead_letter(),
        ConnectionError: retry(2, seconds=0.0),
        TimeoutError: retry_later(60, any_order=True),
    }
    balances = Table(key=str, value=int)
    lines = Output("lines", value=str)
    rejected: ClassVar[int] = 13
    later: ClassVar[int] = 17
    wait: ClassVar[int] = 5_000
    said: ClassVar[str] = "paid"
    factor: ClassVar[int] = 1
    down = 0

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        if posting.amount == self.rejected:
            raise ValueError(f"{posting.amount} is rejected")
        if posting.amount == self.later and "gate" not in self.balances:
            raise TimeoutError("later")
        if Bank.down > 0:
            Bank.down -= 1
            raise ConnectionError("no answer")
        balance = self.balances.get(posting.account, 0) + posting.amount * self.factor
        self.balances[posting.account] = balance
        self.lines.send(f"{posting.account} {balance}", key=posting.account)
        if posting.amount % 10 == 5:
            self.schedule(record.timestamp + self.wait, posting.account, id=posting.account)
        if posting.amount % 10 == 7:
            self.effect(note, f"{posting.account} {self.said}")

    def on_timer(self, timer: Timer) -> None:
        self.lines.send(f"timer of {timer.payload}", key="timer")

    def on_command(self, command: str, record: Record[bytes]) -> None:
        if command == "clear":
            for account in list(self.balances):
                self.balances[account] = 0


def released(**changed: Any) -> type[Bank]:
    """The next release."""
    return type("Bank", (Bank,), changed)


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    Bank.down = 0
    yield
    Bank.down = 0


def run(interval: Interval = "commit") -> Driver:
    """A life with failures, retries, timers, effects, a command, a crash and a redriven dead letter."""
    driver = Driver(Bank, delta_interval=interval, run_effects=True)
    for amount in (1, 5, 7, 2):
        driver.feed(Posting("ann", amount), key="ann")
        driver.feed(Posting("bob", amount + 100), key="bob")
        driver.advance(0.3)
    Bank.down = 2
    driver.feed(Posting("cid", 3), key="cid")
    for amount in (13, 4, 6):
        driver.feed(Posting("dora", amount), key="dora")
    driver.advance(1)
    driver.command("clear")
    driver.advance(1)
    driver.feed(Posting("eve", 17), key="eve")
    driver.advance(1)
    driver.feed(Posting("gate", 1), key="gate")
    driver.feed(Posting("ann", 9), key="ann")
    driver.advance(61)
    driver.feed(Posting("bob", 8), key="bob")
    driver.crash()
    driver.restore()
    driver.release("dora", why="try again")
    driver.advance(1)
    driver.feed(Posting("ann", 27), key="ann")
    driver.advance(6)
    driver.commit()
    assert driver.table(Bank.balances)["eve"] == 17
    assert {"timer of ann", "timer of bob"} <= set(driver.outputs(Bank.lines))
    assert len(driver.dead_letters()) == 3
    return driver


def test_an_old_point_has_its_own_state() -> None:
    """A rehearsal that read the newest state for an old point would add each amount to later balances."""
    driver = run()

    for n in (0, 3, 6, 9):
        found = rehearsed(driver, released(), f"n:{n}")
        assert (found.verdict, found.from_n) == ("equal", n)
    assert rehearsed(driver, released(), "n:0").keys == 0
    assert rehearsed(driver, released(), "latest").records == 0


@pytest.mark.parametrize("interval", INTERVALS)
def test_the_same_code_is_equal_in_everything(interval: Interval) -> None:
    driver = run(interval)
    ends = {topic: driver.broker.log(topic, 0).end for topic in ("input", driver.names.changelog, driver.names.dead)}
    found = rehearsed(driver, released())

    assert (found.verdict, found.examples, found.notes) == ("equal", [], [])
    assert found.records == 18
    assert compared(found, "outputs", "lines").compared == len(driver.outputs(Bank.lines))
    assert compared(found, "dead letters").compared >= 5
    assert compared(found, "effects").compared == 4
    assert {topic: driver.broker.log(topic, 0).end for topic in ends} == ends


def test_a_record_that_the_new_code_handles_is_a_dead_letter_only_live() -> None:
    driver = run()
    found = rehearsed(driver, released(rejected=-1))

    entries = shown(found, "dead letters")
    assert [each.how for each in entries] == ["missing"] * 3
    assert [(each.record, each.live["what"]) for each in entries[:2]] == [
        ("input[0]@9", "dead letter, raised"),
        ("input[0]@10", "dead letter, followed"),
    ]
    assert compared(found, "outputs", "lines").added == 3
    (dora,) = [each for each in shown(found, "table") if (each.name, each.key) == ("balances", "dora")]
    assert (dora.how, dora.new) == ("added", 13 + 4 + 6)


def test_a_record_that_only_the_new_code_fails_at_is_a_dead_letter_there() -> None:
    driver = run()
    found = rehearsed(driver, released(rejected=9), examples=20)

    entries = shown(found, "dead letters")
    assert ("added", "input[0]@15") in [(each.how, each.record) for each in entries]
    assert compared(found, "outputs", "lines").missing >= 1


def test_a_record_that_the_new_code_does_not_retry_later_is_handled_once() -> None:
    driver = run()
    found = rehearsed(driver, released(later=-1))

    assert compared(found, "dead letters").missing == 1
    assert found.of("table", "balances").changed == 0
    assert [each.how for each in shown(found, "outputs")] == ["added", "missing"]


def test_a_key_that_the_new_code_does_not_write_is_missing() -> None:
    driver = Driver(Bank)
    for account in ("ann", "bob", "ann"):
        driver.feed(Posting(account, 1), key=account)
        driver.commit()

    class Skips(Bank):
        def on_record(self, record: Record[Posting]) -> None:
            if record.value.account != "bob":
                super().on_record(record)

    found = rehearsed(driver, Skips)

    balances = compared(found, "table", "balances")
    assert (balances.missing, balances.changed, balances.added) == (1, 0, 0)
    (key,) = [each for each in shown(found, "table") if each.name == "balances"]
    assert (key.how, key.key, key.live, key.new, key.record) == ("missing", "bob", 1, None, "input[0]@1")


class Posted(Handler[Posting]):
    """Declares nothing that the state has."""

    def on_record(self, record: Record[Posting]) -> None:
        """Does nothing."""


def test_what_the_new_code_does_not_declare_is_named_with_the_way() -> None:
    driver = Driver(Bank)
    driver.feed(Posting("ann", 5), key="ann")
    report = rehearsed(driver, Posted, "latest")
    assert report.verdict == "unreadable"
    for table, way in {
        "balances": "Next: name it in was=... of the table that has another name now, or declare balances = Retired(",
        "statehold.timers": "Next: keep what needs it, or delete its keys with `statehold state migrate --drop stateh",
    }.items():
        (text,) = [each for each in report.unreadable if each.startswith(f"table {table!r}: the state has ")]
        assert way in text


@pytest.mark.parametrize("ordinal", [0, 7])
def test_outputs_of_another_transaction_of_the_same_number_are_no_differences(ordinal: int) -> None:
    """A state restored from a backup numbers its transactions from 0 again, and the outputs of before stay."""
    driver = Driver(Bank)
    ((_, _, _, _, _, _, _, headers),) = with_origin([("lines", b"", None, 0, None, None, 0, None)], 0, 1, ordinal)
    driver.broker.log("lines", 0).append(b"ann 99", b"ann", headers)
    for amount in (1, 2):
        driver.feed(Posting("ann", amount), key="ann")
        driver.commit()

    found = rehearsed(driver, released())

    assert (found.verdict, compared(found, "outputs", "lines").compared) == ("equal", 1)
    assert compared(found, "outputs", NUMBER).not_compared == 1
    assert [
        note for note in found.notes if "outputs of another transaction 1, of before the state was restored" in note
    ]
    assert rehearsed(driver, released(factor=2)).verdict == "different"


def test_another_timer_is_named() -> None:
    driver = run()
    found = rehearsed(driver, released(wait=9_000_000))

    timers = compared(found, "table", "statehold.timers")
    assert timers.added + timers.changed == 2
    assert shown(found, "table")[0].record == "input[0]@2"
    assert compared(found, "outputs", "lines").missing == 2


def test_another_effect_is_named() -> None:
    driver = run()
    found = rehearsed(driver, released(said="charged"))

    assert [(each.how, each.live["arguments"], each.new["arguments"]) for each in shown(found, "effects")[:1]] == [
        ("changed", ["ann paid"], ["ann charged"])
    ]
    assert compared(found, "effects").changed == 4
    assert compared(found, "outputs", "lines").equal


def test_without_deltas_the_digest_shows_that_the_state_differs() -> None:
    class Sums(Handler[Posting]):
        sums = Table(key=str, value=int)
        factor: ClassVar[int] = 1

        def on_record(self, record: Record[Posting]) -> None:
            self.sums[record.value.account] = record.value.amount * self.factor

    driver = Driver(Sums, delta_interval="off")
    for amount in range(20):
        driver.feed(Posting("ann", amount))
        driver.commit()

    assert rehearsed(driver, type("Sums", (Sums,), {})).verdict == "equal"
    found = rehearsed(driver, type("Sums", (Sums,), {"factor": 2}))
    assert (found.verdict, compared(found, "state").changed) == ("different", 1)
    assert "by its digest" in found.notes[0]
    assert "input[0]@1" in found.notes[0]


class Quote(msgspec.Struct, frozen=True):
    price: int


class Risk(Handler[Posting]):
    last = Table(key=str, value=int)
    values = Output("values", value=int)
    factor: ClassVar[int] = 1

    @on("trades", value=Posting)
    def trade(self, record: Record[Posting]) -> None:
        self.values.send(record.value.amount * self.last.get("price", 0) * self.factor)

    @on("prices", value=Quote)
    def price(self, record: Record[Quote]) -> None:
        self.last["price"] = record.value.price


def test_several_inputs_are_handled_in_the_recorded_order() -> None:
    driver = Driver(Risk)
    for i in range(30):
        driver.feed(Posting("ann", i), input="trades")
        if i % 3 == 0:
            driver.feed(Quote(i), input="prices")
        driver.advance(0.2)

    assert rehearsed(driver, Risk).verdict == "equal"
    found = rehearsed(driver, type("Risk", (Risk,), {"factor": 2}))
    assert compared(found, "outputs", "values").changed == sum(int(value) > 0 for value in driver.outputs("values"))
    assert shown(found, "outputs")[0].record == "trades[0]@4"


class Stored(Handler[Posting]):
    rows = Sink("rows", value=Row, key="account")
    factor: ClassVar[int] = 1

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        if posting.amount == 0:
            self.rows.delete(posting.account)
        else:
            self.rows.put(Row(posting.account, posting.amount * self.factor))


def test_sink_rows_are_compared_with_those_of_the_old_code(tmp_path: Path) -> None:
    driver = Driver(Stored)
    for i in range(10):
        driver.feed(Posting(f"k{i % 3}", i % 4))
        driver.feed(Posting(f"k{i % 3}", i % 5))  # the last change of a transaction counts
        driver.commit()
    file = tmp_path / "old.jsonl"

    with file.open("w") as opened:
        alone = rehearsed(driver, Stored, files=ResultFiles(ResultsWriter(opened)))
    assert (alone.verdict, compared(alone, "sink", "rows").not_compared) == ("equal", 10)

    same = rehearsed(driver, Stored, files=ResultFiles(against=EarlierResults(file)))
    assert (same.verdict, compared(same, "sink", "rows").compared) == ("equal", 10)
    assert same.old_handler_seconds > 0 < same.old_memory

    other = type("Stored", (Stored,), {"factor": 2})
    found = rehearsed(driver, other, files=ResultFiles(against=EarlierResults(file)))
    rows = compared(found, "sink", "rows")
    assert (rows.changed, rows.not_compared, rows.fields) == (8, 0, {"balance": 8})
    (first, *_) = shown(found, "sink")
    assert (first.key, first.live, first.new) == (["k1"], row(1), row(2))
    assert first.record == "input[0]@2 to input[0]@3"
    ignoring = rehearsed(driver, other, files=ResultFiles(against=EarlierResults(file)), ignore=("rows:balance",))
    assert ignoring.verdict == "equal"


def row(balance: int) -> dict[str, object]:
    return {"account": "k1", "balance": balance}


def test_results_of_another_beginning_are_rejected(tmp_path: Path) -> None:
    driver = Driver(Stored)
    for i in range(4):
        driver.feed(Posting("ann", i))
        driver.commit()
    file = tmp_path / "old.jsonl"
    with file.open("w") as opened:
        rehearsed(driver, Stored, "n:2", files=ResultFiles(ResultsWriter(opened)))

    with pytest.raises(UsageError, match=r"Next: --from n:2 --partitions 0"):
        rehearsed(driver, Stored, files=ResultFiles(against=EarlierResults(file)))
    file.write_text("{")
    with pytest.raises(UsageError, match=r"old\.jsonl:1: this is no result of --save"):
        EarlierResults(file)


def test_a_handler_with_reference_data_is_rejected() -> None:
    class Priced(Handler[Posting]):
        prices = Reference("reference", key=str, value=int)

        def on_record(self, record: Record[Posting]) -> None:
            pass

    class Plain(Handler[Posting]):
        def on_record(self, record: Record[Posting]) -> None:
            pass

    driver = Driver(Plain)
    driver.feed(Posting("ann", 1))
    with pytest.raises(UsageError, match="reads reference data"):
        rehearsed(driver, Priced)
