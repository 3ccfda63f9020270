"""Generated values of each older version show what an upcaster cannot take."""

from __future__ import annotations

import enum
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from msgspec import Meta, Struct

from statehold import Handler, Record, Table
from statehold.testing import check_upcasters


class Side(enum.Enum):
    BUY = "B"
    SELL = "S"


class Place(NamedTuple):
    desk: str
    floor: int = 0


class Tree(Struct, frozen=True):
    name: str
    parts: tuple[Tree, ...] = ()


class Old(Struct, frozen=True, tag="old"):
    """Something of everything."""

    cents: Annotated[int, Meta(ge=-100, lt=100, multiple_of=5)]
    rate: Annotated[float, Meta(gt=0, le=1)]
    code: Annotated[str, Meta(pattern="^[A-Z]{3}$")]
    name: Annotated[str, Meta(min_length=1, max_length=4)]
    side: Side
    kind: Literal["a", 1]
    day: date | None
    at: datetime
    id: UUID
    price: Decimal
    place: Place
    tree: Tree
    pairs: tuple[tuple[str, int], ...]
    seen: frozenset[bytes]
    done: bool = False
    note: str | int | None = None


class Small(Struct, frozen=True):
    """What a failure is shrunk to in no time."""

    cents: int
    done: bool = False
    note: str | int | None = None


class New(Struct, frozen=True):
    cents: int
    name: str


def table(step: Any, old: Any = Old, *further: Any) -> type[Handler[bytes]]:
    class Rows(Handler[bytes]):
        rows = Table(
            key=str,
            value=New,
            version=2 + len(further),
            upcasters={1: (old, step), **dict(enumerate(further, 2))},
        )
        other = Table(key=str, value=int)

        def on_record(self, record: Record[bytes]) -> None: ...

    return Rows


def whole(old: Old) -> New:
    assert -100 <= old.cents < 100
    assert old.cents % 5 == 0
    assert 0 < old.rate <= 1
    assert 1 <= len(old.name) <= 4
    return New(old.cents, old.name)


def test_every_kind_of_value_is_generated() -> None:
    assert check_upcasters(table(whole)) == 1


def test_each_version_with_an_annotation_is_checked() -> None:
    def shorter(old: New) -> New:
        return New(old.cents, old.name[:1])

    assert check_upcasters(table(whole, Old, shorter)) == 2
    assert check_upcasters(table(whole, Old, lambda old: old)) == 1


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda old: New(100 // old.cents, ""), "integer division or modulo by zero"),
        (lambda old: New(old.cents, old.note or ""), "Expected `str`, got `int`"),
        (lambda old: None if old.done else New(0, ""), "returned None, which cannot be read as version 2"),
    ],
    ids=["raises", "another type", "nothing"],
)
def test_an_upcaster_that_fails_at_some_values_is_found(step: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=r"table 'rows', version 1: Small\(cents=") as found:
        check_upcasters(table(step, Small))
    assert said in str(found.value)


def test_a_table_without_versions_has_nothing_to_check() -> None:
    class Plain(Handler[bytes]):
        rows = Table(key=str, value=New)

        def on_record(self, record: Record[bytes]) -> None: ...

    assert check_upcasters(Plain) == 0
