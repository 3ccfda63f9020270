"""A value that is changed in place is not in the next snapshot, so it must not look changed before it either."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from statehold import Handler, Record, Table
from statehold.bound.table import bind
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.testing import Driver

PRODUCTION = Settings(service=ServiceSettings(mode="production"))


class Open(msgspec.Struct):
    x: int


class Holding(msgspec.Struct, frozen=True):
    tags: list[str]


class Frozen(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] = ()
    below: tuple[Frozen, ...] = ()


class Pair(NamedTuple):
    left: int
    right: list[int]


class Typed(TypedDict):
    x: int


@dataclass
class Data:
    x: int


@dataclass(frozen=True)
class FrozenData:
    x: int
    tags: frozenset[str] = field(default_factory=frozenset)


MUTABLE = [
    list[int],
    dict[str, int],
    set[int],
    bytearray,
    Any,
    Open,
    Holding,
    Pair,
    Typed,
    Data,
    tuple[int, list[int]],
    tuple[list[int], ...],
    Open | None,
    Frozen | list[int],
]
IMMUTABLE = [int, float, str | None, bytes, Frozen, FrozenData, tuple[int, str], frozenset[int], Frozen | int]


@pytest.mark.parametrize("kind", MUTABLE)
def test_a_mutable_type_is_rejected_at_declaration(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"can be changed in place.*mutable=True"):
        Table(key=str, value=kind)
    Table(key=str, value=kind, mutable=True)


@pytest.mark.parametrize("kind", IMMUTABLE)
def test_an_immutable_type_is_accepted(kind: Any) -> None:
    Table(key=str, value=kind)


@pytest.mark.parametrize("more", [{}, {"sorted": True}, {"ttl": 60}])
def test_a_table_copies_values_on_put_and_on_read(more: dict[str, Any]) -> None:
    declared: Table[str, list[int]] = Table(key=str, value=list[int], mutable=True, **more)
    declared.__set_name__(object, "table")
    table = bind(declared)
    given = [1]
    table["a"] = given
    given.append(2)
    assert table["a"] == [1]
    table["a"].append(3)
    found = table.get("a")
    assert found == [1]
    found.append(4)
    [(_, walked)] = table.items()
    walked.append(5)
    table.freeze()
    table.commit()
    table["a"].append(6)
    assert table["a"] == table.get("a") == [1]
    assert table.get("b") is None
    assert table.get("b", given) is given
    with pytest.raises(KeyError):
        table["b"]


class Basket(Handler[str]):
    items = Table(key=str, value=list[str], mutable=True)

    def on_record(self, record: Record[str]) -> None:
        items = self.items.get("all", [])
        items.append(record.value)
        if record.value != "forgotten":
            self.items["all"] = items


def test_in_production_memory_and_a_restore_agree() -> None:
    driver = Driver(Basket, settings=PRODUCTION)
    for word in ("apple", "forgotten", "pear"):
        driver.feed(word)
    driver.commit()
    before = driver.table("items")
    assert before == {"all": ["apple", "pear"]}
    driver.crash()
    driver.restore()
    assert driver.table("items") == before
