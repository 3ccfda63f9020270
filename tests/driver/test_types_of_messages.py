"""Null values (tombstones), Pydantic models and dataclasses as inputs, outputs, reference data and values of tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

from statehold import Handler, Output, Record, Reference, Registry, Table
from statehold.errors import HandlerFailed, UndecodableRecord, UsageError
from statehold.testing import Driver


class Order(msgspec.Struct, frozen=True):
    id: int


class Quote(BaseModel):
    id: int
    cents: int = 0


@dataclass(frozen=True)
class Level:
    quantity: int
    quotes: tuple[int, ...] = ()


class Collecting(Handler[Any]):
    """Keep what came, under its offset, as text; each test declares the type."""

    seen: ClassVar[Table[int, str]] = Table(key=int, value=str)

    def on_record(self, record: Record[Any]) -> None:
        self.seen[record.offset] = repr(record.value)


REGISTRY = Registry("mock://tombstones", register=True)
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
AVRO = REGISTRY.avro(Order, SCHEMA)

NULLABLE = {
    "struct": (Order | None, Order(1)),
    "bytes": (bytes | None, b"{"),
    "text": (str | None, "null"),
    "number": (int | None, -7),
    "union": (str | int | None, "seven"),
    "model": (Quote | None, Quote(id=1)),
    "avro": (Annotated[Order, AVRO] | None, Order(1)),
    "described": (Annotated[Order | None, "an order"], Order(1)),
    "limited": (Annotated[str | None, msgspec.Meta(max_length=5)], "seven"),
}
STRICT = {
    "struct": Order,
    "bytes": bytes,
    "text": str,
    "number": int,
    "any": Any,
    "model": Quote,
    "avro": Annotated[Order, AVRO],
}


def collecting(kind: Any) -> type[Collecting]:
    class Typed(Collecting, Handler[kind]):
        out = Output("out", value=kind)

        def on_record(self, record: Record[Any]) -> None:
            super().on_record(record)
            self.out.send(record.value, key="k")

    return Typed


@pytest.mark.parametrize("name", NULLABLE)
def test_a_type_with_none_receives_and_sends_null_values(name: str) -> None:
    kind, value = NULLABLE[name]
    driver = Driver(collecting(kind))
    driver.feed(value)
    driver.feed(None)
    assert driver.table("seen") == {0: repr(value), 1: "None"}
    assert driver.outputs("out") == [value, None]
    assert [message.value() is None for message in driver.broker.log("out", 0).committed()] == [False, True]
    driver.replay()


@pytest.mark.parametrize("name", STRICT)
def test_a_type_without_none_never_receives_a_null_value(name: str) -> None:
    driver = Driver(collecting(STRICT[name]))
    with pytest.raises(UndecodableRecord, match=r"the record's value is null.*Handler\[Order \| None\]"):
        driver.feed(None)
    assert driver.table("seen") == {}


def test_the_limits_of_an_annotated_type_stay() -> None:
    driver = Driver(collecting(NULLABLE["limited"][0]))
    with pytest.raises(UndecodableRecord, match="length <= 5"):
        driver.feed(b'"thirteen"')


def test_json_null_is_still_none() -> None:
    driver = Driver(collecting(Order | None))
    driver.feed(b"null")
    assert driver.table("seen") == {0: "None"}


def test_an_output_of_bytes_rejects_none() -> None:
    class Sending(Handler[str]):
        out = Output("out", value=bytes)

        def on_record(self, record: Record[str]) -> None:
            self.out.send(None)  # type: ignore[call-overload]

    driver = Driver(Sending)
    with pytest.raises(HandlerFailed, match=r"needs the type bytes \| None"):
        driver.feed("x")


def test_pydantic_validates_what_comes_and_what_a_test_sends() -> None:
    driver = Driver(collecting(list[Quote]))
    driver.feed([Quote(id=1), Quote(id=2, cents=3)])
    assert driver.outputs("out") == [[Quote(id=1), Quote(id=2, cents=3)]]
    with pytest.raises(UndecodableRecord, match="ValidationError") as failed:
        driver.feed(b'[{"id": "many"}]')
    assert isinstance(failed.value.__cause__, ValidationError)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_in_development_a_field_of_a_wrong_type_in_a_model_is_named() -> None:
    class Sending(Handler[str]):
        out = Output("out", value=Quote)

        def on_record(self, record: Record[str]) -> None:
            self.out.send(Quote.model_construct(id=record.value))

    driver = Driver(Sending)
    with pytest.raises(HandlerFailed, match=r"(?s)Output\('out'\).*valid integer"):
        driver.feed("x")


def test_reference_data_may_be_a_model() -> None:
    class Looking(Handler[str]):
        quotes = Reference("quotes", key=str, value=Quote)
        out = Output("out", value=int)

        def on_record(self, record: Record[str]) -> None:
            self.out.send(self.quotes[record.value].cents)

    driver = Driver(Looking)
    driver.publish("quotes", "a", Quote(id=1, cents=5))
    driver.feed("a")
    assert driver.outputs("out") == [5]


def test_a_frozen_dataclass_is_a_type_of_everything() -> None:
    class Levels(Handler[Level]):
        levels = Table(key=int, value=Level)
        out = Output("out", value=Level)

        def on_record(self, record: Record[Level]) -> None:
            self.levels[record.offset] = record.value
            self.out.send(record.value)

    driver = Driver(Levels)
    driver.feed(Level(3, (1, 2)))
    assert driver.outputs("out") == [Level(3, (1, 2))]
    driver.crash()
    driver.restore()
    assert driver.table("levels") == {0: Level(3, (1, 2))}


@pytest.mark.parametrize("kind", [Quote, tuple[Quote, ...], Quote | None], ids=["model", "tuple", "union"])
def test_a_table_rejects_a_model_where_it_is_declared(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"class Quote cannot be stored.*not in a table"):
        Table(key=str, value=kind, mutable=True)


def test_an_unknown_class_is_rejected_where_it_is_declared() -> None:
    declarations: list[Callable[[], object]] = [
        lambda: Output("x", value=Basket),
        lambda: Reference("x", key=str, value=Basket),
        lambda: Table(key=str, value=Basket, mutable=True),
    ]
    for declare in declarations:
        with pytest.raises(UsageError, match="class Unknown cannot be stored or sent"):
            declare()


class Unknown: ...


class Basket(msgspec.Struct):
    parts: dict[str, list[Unknown]]


def test_types_that_contain_themselves_and_any_object_are_accepted() -> None:
    Output("x", value=Tree)
    Table(key=str, value=object, mutable=True)


class Tree(msgspec.Struct):
    value: int
    left: Tree | None = None
    right: Tree | None = None
