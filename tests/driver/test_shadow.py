"""A shadow over a driver's topics: failures, crashes, outages of Kafka, retention, late commit markers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from tests.driver.test_rehearsal import Bank, Posting, Quote, Risk, released
from tests.support.handlers import Interval
from tests.support.rehearsing import compared, shown
from tests.support.shadowing import DriverShadow

from statehold import Handler, Record, Table
from statehold.errors import KafkaTrouble
from statehold.shadow.report import ShadowedPartition
from statehold.shadow.tail import HIDDEN
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0]


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    Bank.down = 0
    yield
    Bank.down = 0


def started(interval: Interval = "commit") -> Driver:
    driver = Driver(Bank, delta_interval=interval, run_effects=True)
    driver.feed(Posting("first", 1), key="first")
    driver.advance(6)
    driver.take_full()
    return driver


def live(driver: Driver) -> Iterator[None]:
    """A life with failures, retries, timers, effects, a command, a crash and a redriven dead letter, in steps."""
    for amount in (1, 5, 7, 2):
        driver.feed(Posting("ann", amount), key="ann")
        driver.feed(Posting("bob", amount + 100), key="bob")
        driver.advance(0.3)
        yield
    for amount in (13, 4, 6):
        driver.feed(Posting("dora", amount), key="dora")
        yield
    driver.command("clear")
    driver.feed(Posting("eve", 17), key="eve")
    driver.advance(1)
    yield
    driver.feed(Posting("gate", 1), key="gate")
    driver.feed(Posting("ann", 9), key="ann")
    driver.advance(61)
    yield
    driver.feed(Posting("bob", 8), key="bob")
    driver.crash()
    driver.restore()
    driver.release("dora", why="try again")
    driver.advance(1)
    yield
    driver.take_full()
    driver.feed(Posting("ann", 27), key="ann")
    driver.advance(6)
    driver.commit()
    yield


def ends(driver: Driver) -> dict[Any, int]:
    return {place: log.end for place, log in driver.broker.logs.items() if log.end}


def differing(found: ShadowedPartition) -> set[tuple[str, str]]:
    return {(each.kind, each.name) for each in found.compared if not each.equal}


@pytest.mark.parametrize("interval", INTERVALS)
def test_the_same_code_is_equal_at_every_step(interval: Interval) -> None:
    driver = started(interval)
    shadow = DriverShadow(driver, Bank)

    begin = shadow.look()
    for _ in live(driver):
        before = ends(driver)
        found = shadow.look(commit=False)
        assert (found.phase, found.verdict, found.examples, differing(found)) == ("following", "equal", [], set())
        assert ends(driver) == before  # it writes nothing
    found = shadow.look()

    assert found.end == driver.position()
    assert (begin.starts, found.starts, found.passed_over) == (1, 1, 0)
    assert compared(found, "outputs", "lines").compared > 10
    assert compared(found, "dead letters").compared >= 4
    assert compared(found, "effects").compared == 4
    assert compared(found, "table", "balances").compared > 5


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({"factor": 2}, {("outputs", "lines"), ("table", "balances")}),
        ({"said": "sent"}, {("effects", "effects")}),
        ({"rejected": -1}, {("dead letters", "dead letters"), ("outputs", "lines")}),
        ({"wait": 90_000}, {("outputs", "lines")}),
    ],
)
def test_what_another_code_does_differs_and_is_shown(changed: dict[str, Any], kinds: set[tuple[str, str]]) -> None:
    driver = started()
    shadow = DriverShadow(driver, released(**changed))
    shadow.look()

    for _ in live(driver):
        shadow.look(commit=False)
    found = shadow.look()

    assert kinds <= differing(found)
    assert shadow.shadow.report().verdict == "different"
    assert all(shown(found, kind) for kind, _ in kinds)


def test_an_example_names_record_and_both_sides() -> None:
    driver = started()
    shadow = DriverShadow(driver, released(factor=2))
    shadow.look()
    driver.feed(Posting("ann", 3), key="ann")

    found = shadow.look()

    (line,) = shown(found, "outputs")
    assert (line.record, line.live, line.new) == ("input[0]@1", "ann 3", "ann 6")
    assert (found.from_n, found.records, found.end) == (found.to_n - 1, 1, 2)


def test_ignored_fields_do_not_count() -> None:
    driver = started()
    shadow = DriverShadow(driver, released(factor=2), ignore=["(value)"])
    shadow.look()
    driver.feed(Posting("ann", 3), key="ann")

    assert shadow.look().verdict == "equal"
    assert shadow.shadow.report().ignored == {"(value)": 2}


def test_nothing_compared_is_not_equal() -> None:
    driver = started()
    shadow = DriverShadow(driver, Bank)

    shadow.look()

    assert shadow.shadow.report().verdict == "incomplete"


def test_it_waits_for_the_first_start_of_the_service() -> None:
    driver = Driver(Bank)
    shadow = DriverShadow(driver, Bank)
    found = shadow.look(commit=False)
    assert (found.phase, found.starts) == ("waiting", 0)
    assert "the service has not started" in found.why

    driver.feed(Posting("ann", 3), key="ann")
    driver.commit()
    shadow.wait(10)
    shadow.look()
    driver.feed(Posting("ann", 3), key="ann")
    found = shadow.look()

    assert (found.phase, found.starts, found.verdict, found.records) == ("following", 1, "equal", 1)


def test_an_outage_loses_nothing_and_handles_nothing_again() -> None:
    """Every read of Kafka fails once, at its beginning."""
    driver = started()
    shadow = DriverShadow(driver, Bank)
    shadow.look()
    failed: set[Any] = set()

    def fail(topic: str, partition: int) -> None:
        read = (topic, driver.position(), len(failed) // 40)
        if read not in failed:
            failed.add(read)
            raise KafkaTrouble("no broker answers")

    for _ in live(driver):
        driver.broker.on_read = fail
        for _ in range(100):
            shadow.look(commit=False)
            if not shadow.shadow.report().partitions[0].why:
                break
        driver.broker.on_read = None

    found = shadow.look()
    assert len(failed) > 20
    assert (found.phase, found.verdict, differing(found), found.starts) == ("following", "equal", set(), 1)
    assert found.end == driver.position()


def test_it_says_that_kafka_does_not_answer() -> None:
    driver = started()
    shadow = DriverShadow(driver, Bank)
    shadow.look()
    driver.feed(Posting("ann", 3), key="ann")
    driver.commit()

    def fail(topic: str, partition: int) -> None:
        raise KafkaTrouble("no broker answers")

    driver.broker.on_read = fail
    found = shadow.look(commit=False)

    assert (found.phase, found.why) == ("waiting", "Kafka does not answer: no broker answers")


def test_it_starts_again_where_truncation_was_faster() -> None:
    driver = started()
    shadow = DriverShadow(driver, Bank)
    shadow.look()
    driver.feed(Posting("ann", 3), key="ann")
    shadow.look()
    for amount in range(20, 24):
        driver.feed(Posting("ann", amount), key="ann")
        driver.commit()
    full = driver.take_full()
    assert full is not None
    driver.broker.log(driver.names.changelog, 0).truncate(full.increment)
    driver.feed(Posting("ann", 30), key="ann")

    found = shadow.look()
    assert (found.phase, found.records) == ("waiting", 1)
    shadow.wait(10)
    shadow.look()
    driver.feed(Posting("ann", 31), key="ann")
    found = shadow.look()

    assert (found.phase, found.starts, found.verdict) == ("following", 2, "equal")
    assert found.passed_over >= 4
    assert "retention has deleted what it needs" in found.notes[0]
    assert found.records == 2


def test_outputs_that_become_readable_later_are_awaited() -> None:
    """Each partition of a topic gets the commit marker of a transaction on its own."""
    driver = started()
    shadow = DriverShadow(driver, Bank)
    shadow.look()
    shadow.hide("lines")
    driver.feed(Posting("ann", 3), key="ann")

    found = shadow.look()
    assert (found.records, found.verdict) == (0, "equal")

    shadow.hide("lines", hidden=False)
    found = shadow.look()
    assert (found.records, found.verdict, compared(found, "outputs", "lines").compared) == (1, "equal", 1)


def test_outputs_that_stay_hidden_are_not_compared() -> None:
    driver = started()
    shadow = DriverShadow(driver, Bank)
    shadow.look()
    shadow.hide("lines")
    driver.feed(Posting("ann", 3), key="ann")
    shadow.look()

    shadow.wait(HIDDEN)
    found = shadow.look()

    assert (found.records, found.verdict) == (1, "equal")
    assert compared(found, "outputs", "(number of outputs)").not_compared == 1


def test_several_inputs_are_handled_in_the_recorded_order() -> None:
    driver = Driver(Risk)
    driver.feed(Quote(1), input="prices")
    driver.commit()
    same, other = DriverShadow(driver, Risk), DriverShadow(driver, type("Risk", (Risk,), {"factor": 2}))
    same.look()
    other.look()
    for i in range(30):
        driver.feed(Posting("ann", i), input="trades")
        if i % 3 == 0:
            driver.feed(Quote(i), input="prices")
        driver.advance(0.2)
        if i % 7 == 0:
            same.look()
            other.look()
    equal, different = same.look(), other.look()

    assert (equal.verdict, equal.records, equal.starts) == ("equal", 40, 1)
    assert compared(equal, "outputs", "values").compared == 30
    assert compared(different, "outputs", "values").changed > 20


class Failing(Bank):
    """Has no policy for an error of its own."""

    def on_record(self, record: Record[Posting]) -> None:
        super().on_record(record)
        if record.value.account == "bad":
            raise ZeroDivisionError


def test_a_record_that_the_new_code_fails_at_is_named() -> None:
    driver = started()
    shadow = DriverShadow(driver, Failing)
    shadow.look()
    driver.feed(Posting("bad", 3), key="ann")
    driver.feed(Posting("good", 3), key="ann")

    found = shadow.look()

    (failure,) = shown(found, "failures")
    assert (failure.record, found.records) == ("input[0]@1", 2)


class Other(Handler[Posting]):
    """Declares another type under the same version."""

    balances: ClassVar[Table[str, str]] = Table(key=str, value=str)

    def on_record(self, record: Record[Posting]) -> None:
        """Do nothing."""


def test_code_that_cannot_take_over_the_state_ends_it() -> None:
    driver = started()
    shadow = DriverShadow(driver, Other)

    found = shadow.look()

    assert (found.phase, found.verdict, found.records) == ("unreadable", "unreadable", 0)
    assert any("balances" in text for text in found.unreadable)
    driver.feed(Posting("ann", 3), key="ann")
    assert shadow.look().records == 0


def test_the_report_stays_small() -> None:
    driver = started()
    shadow = DriverShadow(driver, released(factor=2))
    shadow.look()
    for amount in range(20, 400):
        driver.feed(Posting(f"k{amount}", 20), key=f"k{amount}")

    found = shadow.look()

    assert compared(found, "outputs", "lines").changed == 380
    assert len(shown(found, "outputs")) == 3


class Plain(Handler[Posting]):
    """Declares nothing that needs a delta."""

    balances: ClassVar[Table[str, int]] = Table(key=str, value=int)
    factor: ClassVar[int] = 1

    def on_record(self, record: Record[Posting]) -> None:
        self.balances[record.value.account] = record.value.amount * self.factor


def test_without_deltas_the_states_are_compared_by_their_digest() -> None:
    driver = Driver(Plain, delta_interval="off")
    driver.feed(Posting("first", 1), key="first")
    driver.commit()
    driver.take_full()
    same, other = DriverShadow(driver, Plain), DriverShadow(driver, type("Plain", (Plain,), {"factor": 2}))
    assert (same.look().phase, other.look().phase) == ("following", "following")

    for amount in range(3):
        driver.feed(Posting(f"k{amount}", 5), key="k")
        same.look()
        other.look()
    equal, different = same.look(), other.look()

    assert (equal.verdict, equal.records, different.verdict) == ("equal", 3, "different")
    assert "the state differs by its digest" in different.notes[-1]
