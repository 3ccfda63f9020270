"""The quick check and the difference of values agree with a third comparison, for any types and values."""

from __future__ import annotations

import dataclasses
import struct
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from types import GenericAlias
from typing import Any, Literal, NamedTuple, TypedDict, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from statehold.api.values.difference import difference
from statehold.api.values.exact_values import quick_check
from statehold.api.values.serde import Json, MsgPack
from statehold.errors import UsageError


class Side(StrEnum):
    A = "a"


class Level(IntEnum):
    A = 1


class Colour(Enum):
    A = 1


class Text(str):
    """Equals a str."""

    __slots__ = ()


Kind = tuple[Any, st.SearchStrategy[Any]]
_NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  naive on purpose
#: types, and values that fit or only seem to
LEAVES: list[tuple[Any, list[Any]]] = [
    (int, [0, 1, 2**64 - 1, True, 1.0, Level.A]),
    (float, [0.0, -0.0, 1.5, float("nan"), float("inf"), 1, True]),
    (str, ["", "a", "1", Text("a"), Side.A]),
    (bytes, [b"", b"a", bytearray(b"a")]),
    (bool, [True, 1]),
    (None, [None]),
    (datetime, [_NAIVE, datetime(2026, 1, 1, tzinfo=UTC), _NAIVE.replace(fold=1)]),
    (date, [date(2026, 1, 1), _NAIVE]),
    (time, [time(1), time(1, fold=1)]),
    (timedelta, [timedelta(1, 2, 3)]),
    (Decimal, [Decimal("1.0"), Decimal(1), Decimal("NaN")]),
    (UUID, [UUID(int=1)]),
    (Side, [Side.A, "a"]),
    (Level, [Level.A, 1]),
    (Colour, [Colour.A, 1]),
    (Literal[1, 2], [1, True, Level.A]),
    (Any, [1, "a", (1,), [1], {"a": 1.0}, b"x", None]),
    (msgspec.Raw, [msgspec.Raw(b"\x01"), msgspec.Raw(b"1")]),
    (msgspec.msgpack.Ext, [msgspec.msgpack.Ext(1, b"a")]),
    (memoryview, [memoryview(b"a")]),
]
CONTAINERS = ["list", "tuple", "row", "set", "dict", "union"]
CLASSES = ["struct", "dataclass", "namedtuple", "typed"]
_NUMBERS = count()
#: called with names and types that are computed
_NAMED: Any = NamedTuple
_TYPED: Any = TypedDict


@st.composite
def kinds(draw: st.DrawFn, depth: int = 3) -> Kind:
    """A type and its values."""
    form = draw(st.sampled_from(["leaf", *CONTAINERS, *CLASSES]))
    if form == "leaf" or depth == 0:
        kind, given_values = draw(st.sampled_from(LEAVES))
        return kind, st.sampled_from(given_values)
    parts: list[Kind] = draw(st.lists(kinds(depth - 1), min_size=1, max_size=3))
    types, values = [kind for kind, _ in parts], [each for _, each in parts]
    if form in CONTAINERS:
        return container(form, types, values)
    return class_of(form, types, values, hidden=draw(st.booleans()), option=draw(st.booleans()))


def container(form: str, types: list[Any], values: list[st.SearchStrategy[Any]]) -> Kind:
    kind, few = types[0], st.lists(values[0], max_size=2)
    match form:
        case "list":
            return GenericAlias(list, kind), few
        case "tuple":
            return GenericAlias(tuple, (kind, ...)), few.map(tuple) | few
        case "row":
            return GenericAlias(tuple, tuple(types)), st.tuples(*values)
        case "set":
            return GenericAlias(frozenset, kind), few.map(lambda items: frozenset(filter(hashable, items)))
        case "union":
            return Union[tuple(types)], st.one_of(values)  # noqa: UP007  the types are computed
    pairs = st.lists(st.tuples(values[-1], values[0]), max_size=2)
    keyed = pairs.map(lambda items: {key: value for key, value in items if hashable(key)})
    return GenericAlias(dict, (types[-1], kind)), keyed | keyed.map(OrderedDict)


def class_of(form: str, types: list[Any], values: list[st.SearchStrategy[Any]], *, hidden: bool, option: bool) -> Kind:
    """A class with a field of each type; the first may be private, and the class may have an option of its form."""
    name, row = f"Made{next(_NUMBERS)}", st.tuples(*values)
    fields: list[Any] = [(f"{'_' * (hidden and not number)}f{number}", each) for number, each in enumerate(types)]
    made: Any
    match form:
        case "struct":
            made = msgspec.defstruct(name, fields, frozen=True, array_like=option, tag=hidden or None)
        case "dataclass":
            made = dataclasses.make_dataclass(name, fields, frozen=True, slots=option)
        case "namedtuple":
            made = _NAMED(name, [(each.strip("_"), kind) for each, kind in fields])
        case _:
            made = _TYPED(name, dict(fields), total=option)
            return made, row.map(lambda each: dict(zip(dict(fields), each, strict=True)))
    return made, row.map(lambda each: made(*each))


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def same(live: Any, back: Any) -> bool:
    """The rule, written down once more."""
    if type(live) is not type(back):
        return False
    if isinstance(live, float):
        return struct.pack("d", live) == struct.pack("d", back) or (live != live and back != back)  # noqa: PLR0124
    if isinstance(live, frozenset):
        return len(live) == len(back) and all(any(same(item, other) for other in back) for item in live)
    if (parts := parts_of(live)) is not None:
        others = parts_of(back) or []
        return len(parts) == len(others) and all(map(same, parts, others))
    return repr(live) == repr(back) and getattr(live, "fold", 0) == getattr(back, "fold", 0)


def parts_of(value: Any) -> list[Any] | None:
    match value:
        case list() | tuple():
            return list(value)
        case dict():
            return [part for pair in value.items() for part in pair]
        case msgspec.Raw() | memoryview():
            return [bytes(value)]
        case msgspec.msgpack.Ext():
            return [value.code, value.data]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    return None if names is None else [getattr(value, name) for name in names]


@pytest.mark.parametrize("serde", [MsgPack, Json])
@settings(max_examples=200, deadline=None)
@given(kind=kinds(), data=st.data())
def test_only_what_comes_back_is_accepted(serde: Any, kind: Kind, data: st.DataObject) -> None:
    try:
        made = serde(kind[0])
    except (TypeError, ValueError, UsageError):  # msgspec has no such type
        assume(False)
    check = quick_check(made)
    assert check is not None
    for _ in range(3):
        live = data.draw(kind[1])
        try:
            encoded = made.encode(live)
        except Exception:  # noqa: BLE001, S112  then no table stores it
            continue
        try:
            back = made.decode(encoded)
        except (msgspec.MsgspecError, TypeError, ValueError):
            assert not check([live])
            continue
        comes_back = same(live, back)
        assert comes_back or not check([live]), f"{kind[0]}: {live!r} becomes {back!r}"
        assert (difference(live, back) is None) == comes_back, f"{kind[0]}: {live!r} becomes {back!r}"
