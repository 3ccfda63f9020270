"""Sinks of a handler with several inputs: a transaction that only the database has is repeated in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold import Handler, Output, Record, Sink, Table, on
from statehold.bound.sink import Rows, SinkPosition
from statehold.config import Settings
from statehold.config.sections.inputs import InputsSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.errors import SinkDisagrees
from statehold.testing import Driver

Input = Literal["orders", "cancels"]


class Amount(msgspec.Struct, frozen=True):
    value: int


class Entry(msgspec.Struct, frozen=True):
    number: int
    input: str
    link: int


class Journal(Handler[None]):
    """Each entry depends on all records before it, so another order gives other rows and another digest."""

    last = Table(key=int, value=Entry)
    entries = Sink("entries", value=Entry, key="number")
    said = Output("said", value=Entry)

    @on("orders", value=Amount)
    def on_order(self, record: Record[Amount]) -> None:
        self._enter(record, 31)

    @on("cancels", value=Amount)
    def on_cancel(self, record: Record[Amount]) -> None:
        self._enter(record, 37)

    def _enter(self, record: Record[Amount], factor: int) -> None:
        before = self.last.get(0, Entry(0, "", 7))
        link = (before.link * factor + record.value.value + record.offset) % 1_000_003
        entry = self.last[0] = Entry(before.number + 1, record.topic, link)
        self.entries.put(entry)
        self.said.send(entry)


def journal() -> Driver:
    """Whose database sees no row twice, and never goes back."""
    values = Settings(
        service=ServiceSettings(mode="development"),
        snapshot=SnapshotSettings(delta_interval=1000),
        inputs=InputsSettings(order="time"),
    )
    driver, seen = Driver(Journal, settings=values, autocommit=False, batch=1), set[int]()

    def look(before: SinkPosition, now: SinkPosition, rows: Sequence[Rows]) -> None:
        assert now.position >= before.position
        fresh = [row[0] for each in rows for row in each.puts]
        assert not seen.intersection(fresh)
        seen.update(fresh)

    driver.database.on_commit = look
    return driver


def agrees(driver: Driver) -> bool:
    return driver.rows("entries") == driver.outputs("said")


def die_in_commit(driver: Driver) -> None:
    """The database commits the open transaction, Kafka does not, and the process is gone."""
    before = driver.database.commits
    driver.broker.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.commit()
    driver.crash()
    assert driver.database.commits == before + 1


def limit(driver: Driver, records: int) -> None:
    """The next process commits that many records at most."""
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=records))


def test_records_are_repeated_in_the_order_of_the_rows_and_not_by_their_time() -> None:
    driver = journal()
    for number, topic in enumerate(("cancels", "orders", "cancels", "cancels", "orders")):
        # by time they would come in the opposite order of the inputs
        driver.feed(Amount(number), input=topic, timestamp=100 if topic == "orders" else 200)
    die_in_commit(driver)
    driver.restore()
    driver.commit()
    assert [each.input for each in driver.outputs("said")] == ["cancels", "orders", "cancels", "cancels", "orders"]
    assert agrees(driver)
    driver.replay()


def test_a_part_that_kafka_has_committed_since_is_not_repeated() -> None:
    driver = journal()
    for number, topic in enumerate(("cancels", "cancels", "cancels", "orders", "orders", "orders")):
        driver.feed(Amount(number), input=topic, timestamp=1000 - number)
    die_in_commit(driver)
    limit(driver, 3)
    driver.broker.fail("commit", KeyboardInterrupt(), after=True)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  either call may begin the commit
        driver.restore()
        driver.commit()
    driver.crash()
    assert len(driver.outputs("said")) == 3
    driver.restore()
    driver.commit()
    assert [each.number for each in driver.outputs("said")] == [1, 2, 3, 4, 5, 6]
    assert agrees(driver)


def test_a_note_that_holds_no_order_is_rejected() -> None:
    driver = journal()
    driver.feed(Amount(1), input="orders")
    die_in_commit(driver)
    held = driver.database.held[0]
    note: list[Any] = msgspec.msgpack.decode(held.note)
    note[5] = b"\x07\x01"  # an input that the service does not read
    driver.database.held[0] = held._replace(note=msgspec.msgpack.encode(note))
    with pytest.raises(SinkDisagrees, match="the note at its position 1 cannot be read"):
        driver.restore()


@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "cancels"]), st.integers(0, 9), st.integers(0, 30)),
        max_size=30,
    ),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.sampled_from([1, 3, 10_000]),
)
@settings(max_examples=100, deadline=None)
def test_the_database_says_what_kafka_says_whatever_dies_when(
    fed: list[tuple[Input, int, int]], deaths: set[int], commits: set[int], most: int
) -> None:
    driver = journal()
    for i, (topic, value, moment) in enumerate(fed):
        driver.feed(Amount(value), input=topic, timestamp=moment)
        if i in commits:
            driver.commit()
        if i in deaths and driver.position() <= i:
            die_in_commit(driver)
            limit(driver, most)
            driver.restore()
    driver.commit()
    assert agrees(driver)
    assert len(driver.outputs("said")) == len(fed)
    driver.replay()


def test_a_replay_puts_no_row_again() -> None:
    """The database has those rows already; `journal` checks that it never sees one twice."""
    driver = journal()
    for number in range(3):
        driver.feed(Amount(number), input="orders")
        driver.commit()
    driver.crash()
    driver.restore()
    assert [fields["records"] for event, fields in driver.events if event == "replayed"][-1] == 3
    driver.feed(Amount(9), input="cancels")
    driver.commit()
    assert [each.number for each in driver.outputs("said")] == [1, 2, 3, 4]
    assert agrees(driver)
