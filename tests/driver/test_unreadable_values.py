"""Code whose types differ from those of the stored state says so: no record and no damage is blamed."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest
from tests.support import inside

from statehold import Handler, Record, Table, Tumbling, dead_letter
from statehold.errors import HandlerFailed, UnknownSchema, UnreadableValue
from statehold.testing import Driver


class Cents(msgspec.Struct, frozen=True):
    cents: int


class Text(msgspec.Struct, frozen=True):
    cents: str


class Both(enum.Enum):
    OPEN = "open"
    SHUT = "shut"


class One(enum.Enum):
    OPEN = "open"


def handler(table: Any, value: Any = None) -> type[Handler[str]]:
    """Return a handler that reads a table, and then writes `value` unless it is None."""

    class Rows(Handler[str]):
        on_failure = {Exception: dead_letter()}  # noqa: RUF012
        rows = table

        def on_record(self, record: Record[str]) -> None:
            key = {str: record.value, int: 1, Both: Both.SHUT}[self.rows.key_type]
            self.rows.get(key)
            if value is not None:
                self.rows[key] = value

    return Rows


def written(table: Any, value: Any, *, full: bool = False) -> Driver:
    """Return a driver whose owner has written one value and died; `full`: a full snapshot holds it."""
    driver = Driver(handler(table, value))
    driver.feed("ann")
    driver.commit()
    if full:
        driver.take_full()
    driver.crash()
    return driver


@pytest.mark.parametrize(
    ("old", "value", "new", "cause"),
    [
        (Table(key=str, value=Cents), Cents(5), Table(key=str, value=Text), "Expected `str`, got `int` - at `$.cents`"),
        (Table(key=str, value=Both), Both.SHUT, Table(key=str, value=One), "Invalid enum value 'shut'"),
        (
            Table(key=str, value=Cents),
            Cents(5),
            Table(key=str, value=tuple[int, ...]),
            "Expected `array`, got `object`",
        ),
    ],
    ids=["field", "enum member", "array"],
)
def test_a_value_of_another_type_fails_the_partition_and_no_record(old: Any, value: Any, new: Any, cause: str) -> None:
    driver = written(old, value)
    driver._factory = handler(new)
    driver.restore()

    with pytest.raises(UnreadableValue) as found:
        driver.feed("ann")

    assert not isinstance(found.value, HandlerFailed)
    assert "table 'rows', key 'ann': the stored value has version 1" in str(found.value)
    assert cause in str(found.value)
    assert "No record is at fault" in str(found.value)
    assert str(found.value).endswith("or declare version=2 and upcasters={1: ...} with the new type")
    assert driver.dead_letters() == []
    driver.crash()
    driver._factory = handler(old)
    driver.restore()
    assert driver.table("rows") == {"ann": value}


def broken(old: Any) -> Any:
    raise ValueError(f"no currency: {old}")


def test_an_upcaster_that_fails_names_table_key_and_version() -> None:
    driver = written(Table(key=str, value=Cents), Cents(5))
    driver._factory = handler(Table(key=str, value=Text, version=2, upcasters={1: broken}))
    driver.restore()

    with pytest.raises(
        UnreadableValue, match=r"table 'rows', key 'ann': the stored value has version 1.*no currency"
    ) as found:
        driver.feed("ann")
    assert str(found.value).endswith("or fix the upcasters from version 1 on")


class Numbers:
    """A serde of a user's own, whose values cannot have a version."""

    def encode(self, value: int, /) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes, /) -> int:
        return int(data)


def test_a_serde_of_the_users_own_gets_other_advice() -> None:
    driver = written(Table(key=str, value=Cents), Cents(5))
    driver._factory = handler(Table(key=str, value=Numbers()))
    driver.restore()

    with pytest.raises(UnreadableValue) as found:
        driver.feed("ann")
    assert str(found.value).endswith("or give the table a serde that reads it")


@pytest.mark.parametrize("full", [False, True], ids=["delta", "full"])
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (Table(key=int, value=int), Table(key=str, value=int), "cannot read as str: Expected `str`, got `int`"),
        (Table(key=str, value=int), Table(key=bytes, value=int), "cannot read as bytes: Expected `bytes`, got `str`"),
        (Table(key=Both, value=int), Table(key=One, value=int), "cannot read as One: Invalid enum value 'shut'"),
    ],
    ids=["int to str", "str to bytes", "enum member"],
)
def test_keys_of_another_type_are_no_damage(old: Any, new: Any, cause: str, *, full: bool) -> None:
    driver = written(old, 1, full=full)
    driver._factory = handler(new)

    with pytest.raises(UnknownSchema) as found:
        driver.restore()

    assert f"the state holds keys of table 'rows' that this code {cause}" in str(found.value)
    assert "Nothing was changed" in str(found.value)
    driver._factory = handler(old)
    driver.restore()
    assert list(driver.table("rows").values()) == [1]


def counted(kind: Any) -> type[Handler[str]]:
    """Return a handler that counts in windows whose values are of this type."""

    class Counted(Handler[str]):
        counts: Any = Tumbling(60.0, key=str, value=kind)

        def on_record(self, record: Record[str]) -> None:
            self.counts.update(record, record.value, lambda _: Cents(1))

        def on_window(self, name: str, key: Any, start: int, end: int, value: Any) -> None: ...

    return Counted


def test_a_window_of_another_type_is_named_too() -> None:
    driver = Driver(counted(Cents))
    driver.feed("ann", timestamp=0)
    driver.commit()
    driver.crash()
    driver._factory = counted(Text)
    driver.restore()
    with pytest.raises(UnreadableValue, match="table 'counts', key "):
        driver.feed("ann", timestamp=1)


def test_a_lookup_of_another_thread_names_table_and_key() -> None:
    driver = written(Table(key=str, value=Cents), Cents(5))
    driver._factory = handler(Table(key=str, value=Text))
    driver.restore()
    table = inside.lane(driver).engine().state.tables["rows"]

    with pytest.raises(UnreadableValue, match="table 'rows', key 'ann': the stored value has version 1"):
        table.decoded("ann", table.stored["ann"])
