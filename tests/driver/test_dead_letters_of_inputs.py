"""Dead letters, blocked keys and retry topics of a handler with several inputs, whose offsets are alike."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold import Handler, Output, Record, Table, dead_letter, on, retry_later
from statehold.config import Settings
from statehold.config.sections.processing import FailureSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.errors import HandlerFailed, UndecodableRecord
from statehold.messages import command
from statehold.testing import Driver

Input = Literal["orders", "cancels"]


class Note(msgspec.Struct, frozen=True):
    key: str
    number: int


class Book(Handler[None]):
    """Writes each record down; its numbers below 0 are rejected, unless `repaired`."""

    on_failure: ClassVar = {ValueError: dead_letter(), UndecodableRecord: dead_letter()}
    chain = Table(key=str, value=int)
    lines = Output("lines", value=str)
    repaired: ClassVar[bool] = False

    @on("orders", value=Note)
    def on_order(self, record: Record[Note]) -> None:
        self.write("orders", record)

    @on("cancels", value=Note)
    def on_cancel(self, record: Record[Note]) -> None:
        self.write("cancels", record)

    def write(self, input: str, record: Record[Note]) -> None:
        if record.topic != input:
            raise TypeError(f"a record of {record.topic} was given to the method of {input}")
        note = record.value
        self.chain[note.key] = (self.chain.get(note.key, 7) * 31 + note.number) % 1_000_003
        self.lines.send(f"{input} {note.key} {note.number}", note.key)
        if note.number < 0 and not Book.repaired:
            raise ValueError(f"{note.number} is rejected")


class Later(Book):
    on_failure: ClassVar = {ValueError: retry_later(10, any_order=True).then(dead_letter(ordered=False))}


class Plain(Book):
    on_failure: ClassVar = {}


@pytest.fixture(autouse=True)
def _as_new() -> None:
    Book.repaired = False


def driver_of(kind: type[Book] = Book) -> Driver:
    values = Settings(
        service=ServiceSettings(mode="development"),
        snapshot=SnapshotSettings(delta_interval="commit"),
        failure=FailureSettings(dead_row=1000, dead_percent=100),
    )
    return Driver(kind, settings=values, batch=1)


def feed(driver: Driver, input: Input, key: str, number: int) -> int:
    driver.clock.advance(0.001)  # after a crash the records that no transaction has are merged by their timestamps
    return driver.feed(Note(key, number), key, input=input)


def test_records_of_both_inputs_follow_a_blocked_key_and_are_redriven_in_their_order() -> None:
    driver = driver_of()
    feed(driver, "orders", "b", 1)
    feed(driver, "cancels", "a", -1)
    feed(driver, "cancels", "a", 2)
    feed(driver, "orders", "a", 3)  # orders and cancels have offset 1 here
    feed(driver, "orders", "a", -4)
    feed(driver, "orders", "b", 5)
    assert driver.outputs("lines") == ["orders b 1", "orders b 5"]
    dead_letters = driver.dead_letters()
    assert [each.name for each in dead_letters] == ["cancels:0@0", "cancels:0@1", "orders:0@1", "orders:0@2"]
    assert [each.previous for each in dead_letters] == [-1, *(each.place for each in dead_letters[:-1])]

    Book.repaired = True
    driver.release()
    driver.advance(2)
    assert driver.outputs("lines")[2:] == ["cancels a -1", "cancels a 2", "orders a 3", "orders a -4"]
    assert driver.dead_letters() == []
    feed(driver, "cancels", "a", 6)
    assert driver.outputs("lines")[-1] == "cancels a 6"
    driver.crash()
    driver.restore()
    driver.replay()


def test_dead_letters_with_one_offset_in_both_inputs_are_resolved_one_by_one() -> None:
    driver = driver_of()
    for topic in ("orders", "cancels"):
        driver.feed(Note("a", -1), input=topic)  # no key, so it blocks none
    assert [each.name for each in driver.dead_letters()] == ["orders:0@0", "cancels:0@0"]
    Book.repaired = True
    driver.release()
    driver.release()  # the second command for a dead letter does nothing
    driver.advance(2)
    assert driver.dead_letters() == []
    assert driver.outputs("lines") == ["orders a -1", "cancels a -1"]


@pytest.mark.parametrize("repaired", [True, False])
def test_records_with_one_offset_in_both_inputs_are_each_retried_by_their_method(repaired: bool) -> None:
    driver = driver_of(Later)
    feed(driver, "orders", "a", -1)
    feed(driver, "cancels", "a", -2)
    assert driver.outputs("lines") == []
    Book.repaired = repaired
    driver.advance(12)
    if repaired:
        assert sorted(driver.outputs("lines")) == ["cancels a -2", "orders a -1"]
    else:
        assert [each.name for each in driver.dead_letters()] == ["orders:0@0", "cancels:0@0"]
        Book.repaired = True
        driver.release()
        driver.advance(2)
        assert sorted(driver.outputs("lines")) == ["cancels a -2", "orders a -1"]
        assert driver.dead_letters() == []
    driver.replay()


def test_a_request_passes_over_the_failed_record_and_not_that_of_the_other_input_with_its_offset() -> None:
    driver = driver_of(Plain)
    feed(driver, "cancels", "a", 1)
    feed(driver, "orders", "a", 2)
    feed(driver, "cancels", "a", 3)
    with pytest.raises(HandlerFailed, match="cancels"):
        feed(driver, "cancels", "a", -4)
    driver.dead_letter(2, overtake=True, input="orders")
    with pytest.raises(HandlerFailed, match="cancels"):
        driver.restore()
    driver.dead_letter(2, overtake=True, why="a test", input="cancels")
    driver.restore()
    assert [each.name for each in driver.dead_letters()] == ["cancels:0@2"]
    assert driver.dead_letters()[0].reason == "a test"
    feed(driver, "orders", "a", 5)
    assert driver.outputs("lines")[-1] == "orders a 5"
    driver.replay()


def test_a_record_of_a_further_input_with_the_header_of_a_command_follows_its_blocked_key() -> None:
    driver = driver_of()
    feed(driver, "cancels", "a", -1)
    driver.feed(Note("a", 2), "a", headers=[command.header("hello", "", "someone")], input="cancels")
    assert driver.outputs("lines") == []
    Book.repaired = True
    driver.release()
    driver.advance(2)
    assert driver.outputs("lines") == ["cancels a -1", "cancels a 2"]


Fed = tuple[Input, str, int]


@given(
    st.lists(st.tuples(st.sampled_from(["orders", "cancels"]), st.sampled_from("ab"), st.integers(-1, 3)), max_size=25),
    st.sets(st.integers(0, 25)),
    st.sampled_from([Book, Later]),
)
@settings(max_examples=60, deadline=None)
def test_each_record_is_handled_once_and_those_of_a_key_in_their_order(
    fed: list[Fed], crashes: set[int], kind: type[Book]
) -> None:
    Book.repaired = False
    driver = driver_of(kind)
    for i, (topic, key, number) in enumerate(fed):
        feed(driver, topic, key, number)
        if i in crashes:
            driver.crash()
            driver.restore()
    Book.repaired = True
    driver.advance(12)
    driver.release()
    driver.advance(5)
    wanted = [f"{topic} {key} {number}" for topic, key, number in fed]
    assert sorted(driver.outputs("lines")) == sorted(wanted)
    if kind is Book:
        for key in "ab":
            of_key = f" {key} "
            assert [each for each in driver.outputs("lines") if of_key in each] == [
                each for each in wanted if of_key in each
            ]
    assert driver.dead_letters() == []
    driver.replay()
