"""The driver finds outputs, tables, sinks and reference data by their declarations, and the results have its types.

`script/check` checks each `assert_type` with mypy.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_type

import msgspec
import pytest

from statehold import Dedupe, Handler, Output, Record, Reference, Sink, Table, Tumbling
from statehold.errors import UsageError
from statehold.testing import Driver
from statehold.testing.driver import OutputRecord


class Fill(msgspec.Struct, frozen=True):
    id: int
    price: int


class Book(Handler[Fill]):
    fills = Output("fills-of-book", value=Fill)
    totals = Table(key=str, value=int)
    minutes = Tumbling(timedelta(minutes=1), key=str, value=int)
    seen = Dedupe(key=int, ttl=60)
    rates = Reference("rates", key=str, value=int)

    def on_record(self, record: Record[Fill]) -> None:
        if self.seen.seen(record.value.id):
            return
        self.totals["all"] = self.totals.get("all", 0) + record.value.price * self.rates.get("EUR", 1)
        self.minutes.update(record, "all", lambda value: (value or 0) + 1)
        self.fills.send(record.value, key=str(record.value.id))

    def on_window(self, name: str, key: Any, start: int, end: int, value: Any) -> None: ...


class Stored(Handler[Fill]):
    rows = Sink("fills_table", value=Fill, key="id")

    def on_record(self, record: Record[Fill]) -> None:
        self.rows.put(record.value)


class Other(Handler[Fill]):
    fills = Output("fills-of-book", value=Fill)
    totals = Table(key=str, value=int)

    def on_record(self, record: Record[Fill]) -> None: ...


@pytest.fixture
def driver() -> Driver:
    made = Driver(Book)
    made.publish(Book.rates, "EUR", 3)
    made.feed(Fill(1, 10), timestamp=60_000)
    made.feed(Fill(1, 10), timestamp=60_000)
    return made


def test_results_have_the_types_of_their_declarations(driver: Driver) -> None:
    fills = driver.outputs(Book.fills)
    assert_type(fills, list[Fill])
    assert fills == [Fill(1, 10)]
    sent = driver.sent(Book.fills)
    assert_type(sent, list[OutputRecord[Fill]])
    assert sent[0].key == b"1"
    totals = driver.table(Book.totals)
    assert_type(totals, Mapping[str, int])
    assert totals == {"all": 30}
    minutes = driver.table(Book.minutes)
    assert_type(minutes, Mapping[tuple[str, int, int], int])
    assert minutes == {("all", 60_000, 120_000): 1}
    seen = driver.table(Book.seen)
    assert_type(seen, Mapping[int, int])
    assert seen == {1: 120_000}


def test_rows_have_the_type_of_their_sink() -> None:
    driver = Driver(Stored)
    driver.feed(Fill(1, 10))
    rows = driver.rows(Stored.rows)
    assert_type(rows, list[Fill])
    assert rows == driver.rows("rows") == driver.rows("fills_table") == [Fill(1, 10)]


def test_names_work_too(driver: Driver) -> None:
    assert_type(driver.outputs("fills"), list[Any])
    assert_type(driver.table("totals"), Mapping[Any, Any])
    assert driver.outputs("fills") == driver.outputs("fills-of-book") == [Fill(1, 10)]
    assert driver.table("totals") == {"all": 30}
    driver.publish("rates", "EUR", None)
    driver.feed(Fill(2, 5))
    assert driver.table("totals") == {"all": 35}


def test_a_declaration_of_another_handler_is_rejected(driver: Driver) -> None:
    with pytest.raises(UsageError, match="this Output is not of Book; there are: fills-of-book"):
        driver.outputs(Other.fills)
    with pytest.raises(UsageError, match=r"this Table is not of Book; there are: .*totals"):
        driver.table(Other.totals)
    with pytest.raises(UsageError, match="no output 'fill'; there are: fills-of-book"):
        driver.outputs("fill")
