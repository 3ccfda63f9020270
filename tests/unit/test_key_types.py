"""Keys that are equal have the same bytes: whatever commits can be restored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, NamedTuple, NewType
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold import Table
from statehold.api.table import Dedupe
from statehold.bound.table import bind
from statehold.errors import UsageError
from statehold.snapshot.format.records import EntryDecoder, entry
from statehold.state.state import State


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Side(Enum):
    BUY = "buy"


class Point(NamedTuple):
    x: int
    y: int


class Frozen(msgspec.Struct, frozen=True):
    x: int


class Open(msgspec.Struct):
    x: int


@dataclass(frozen=True)
class Data:
    x: int


class Priced(msgspec.Struct, frozen=True):
    price: Decimal


def state_of(kind: Any) -> State:
    table: Table[Any, Any] = Table(key=kind, value=int)
    table.__set_name__(object, "table")
    return State([bind(table)], track_delta=True)


def commit(state: State) -> bytes:
    frozen = state.freeze()
    raw = b"".join(bytes(entry(changes)) for changes in state.delta(frozen))
    state.commit(frozen, delta=True)
    return raw


def restored(kind: Any, deltas: list[bytes]) -> State:
    state = state_of(kind)
    decoder = EntryDecoder({"table": kind})
    for raw in filter(None, deltas):
        state.follow(decoder.decode(msgspec.Raw(raw)))
    state.taken_over()
    followed = state.digest
    state.loaded()
    assert state.digest == followed
    return state


EQUAL = [
    (int, 1, 1.0),
    (int, 1, True),
    (int, 1, Decimal(1)),
    (tuple[str, int], ("a", 100), ("a", 100.0)),
    (tuple[str, int], ("a", 1), ("a", True)),
    (tuple[int, ...], (1, 2), (1, 2.0)),
    (Point, Point(1, 2), Point(1, 2.0)),  # type: ignore[arg-type]
    (Frozen, Frozen(1), Frozen(1.0)),  # type: ignore[arg-type]
    (Data, Data(1), Data(1.0)),  # type: ignore[arg-type]
    (bytes, b"x", memoryview(b"x")),
    (bool, True, 1),
]


@pytest.mark.parametrize(("kind", "key", "equal"), EQUAL)
@pytest.mark.parametrize("delete", [False, True])
def test_a_key_that_equals_a_stored_one_and_has_other_bytes_is_rejected(
    kind: Any, key: Any, equal: Any, delete: bool
) -> None:
    assert key == equal
    state = state_of(kind)
    table = state.tables["table"]
    table[key] = 1
    deltas = [commit(state)]
    if delete:
        del table[equal]
    else:
        table[equal] = 2
    with pytest.raises(UsageError, match=r"table 'table': key .* cannot be stored as "):
        state.freeze()
    state.rollback()
    table[key] = 3
    deltas.append(commit(state))
    assert restored(kind, deltas).digest == state.digest


@pytest.mark.parametrize(
    ("kind", "key"), [(int, 2**64), (int, -(2**63) - 1), (str, "\ud800"), (tuple[str, int], ("", 2**70))]
)
def test_a_key_that_cannot_be_encoded_is_rejected_by_name(kind: Any, key: Any) -> None:
    state = state_of(kind)
    state.tables["table"][key] = 1
    with pytest.raises(UsageError, match=r"table 'table': key .* cannot be stored as "):
        state.freeze()


REFUSED = [
    float,
    Decimal,
    tuple[str, Decimal],
    tuple[str, tuple[float, ...]],
    Annotated[Decimal, msgspec.Meta(gt=0)],
    Priced,
    Any,
    str | None,
    int | bool,
    str | bytes,
    list[int],
    dict[str, int],
    set[int],
    frozenset[int],
    Open,
    time,
    object,
]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_whose_equal_keys_may_have_other_bytes_is_rejected_at_declaration(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"Table\(key="):
        Table(key=kind, value=int)
    with pytest.raises(UsageError, match=r"Table\(key="):
        Dedupe(key=kind, ttl=1)


def test_a_price_as_a_key_is_rejected_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="use an int of the smallest unit, or str"):
        Table(key=tuple[str, Decimal], value=int)


ACCEPTED: list[tuple[Any, Any]] = [
    (str, "a"),
    (int, -5),
    (bytes, b"x"),
    (bool, True),
    (UUID, UUID(int=5)),
    (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
    (Colour, Colour.RED),
    (Side, Side.BUY),
    (Point, Point(1, 2)),
    (Frozen, Frozen(1)),
    (Data, Data(1)),
    (tuple[str, int], ("a", 1)),
    (tuple[str, ...], ("a", "b")),
    (tuple[str, tuple[int, bytes]], ("a", (1, b"x"))),
    (NewType("Id", str), "a"),
    (Annotated[str, msgspec.Meta(max_length=3)], "abc"),
]


@pytest.mark.parametrize(("kind", "key"), ACCEPTED)
def test_other_types_commit_and_come_back(kind: Any, key: Any) -> None:
    state = state_of(kind)
    state.tables["table"][key] = 1
    deltas = [commit(state)]
    state.tables["table"][key] = 2
    deltas.append(commit(state))
    back = restored(kind, deltas)
    assert back.digest == state.digest
    assert back.tables["table"][key] == 2


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (str, Colour.RED),
        (int, Number.ONE),
        (tuple[str, int], ("a", Number.ONE)),
        (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_key_that_would_come_back_as_another_type_is_rejected(kind: Any, key: Any) -> None:
    state = state_of(kind)
    state.tables["table"][key] = 1
    with pytest.raises(UsageError, match="it would come back as"):
        commit(state)


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, 2.0, "1", b"1", None])
WILD = st.integers(-3, 3) | st.booleans() | st.floats(allow_nan=False) | SPECIAL
TRANSACTIONS = st.lists(st.lists(st.tuples(WILD, WILD), max_size=3), max_size=6)


@given(st.sampled_from([int, tuple[int, int], tuple[int, ...]]), TRANSACTIONS)
@settings(max_examples=300, deadline=None)
def test_whatever_commits_can_be_restored(kind: Any, transactions: list[list[tuple[Any, Any]]]) -> None:
    state, deltas = state_of(kind), []
    for writes in transactions:
        for pair in writes:
            key = pair if kind is not int else pair[0]
            if pair[1] is None:
                state.tables["table"].delete(key)
            else:
                state.tables["table"][key] = 1
        try:
            deltas.append(commit(state))
        except UsageError:
            state.rollback()
    assert restored(kind, deltas).digest == state.digest
