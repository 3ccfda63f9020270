"""Values that know their version: the sign cannot be mistaken, older values are read, none is guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold import Table
from statehold.api.values import serde
from statehold.api.values.versioned_values import MARKER, Versioned, version_of, versioned
from statehold.bound.table import bind
from statehold.errors import UnknownSchema, UsageError
from statehold.state.partition_table import PartitionTable

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Cents(msgspec.Struct, frozen=True):
    cents: int


class Money(msgspec.Struct, frozen=True):
    whole: int
    hundredths: int


class Priced(msgspec.Struct, frozen=True):
    amount: Money
    currency: str


def to_money(old: Cents) -> Money:
    return Money(*divmod(old.cents, 100))


def to_priced(old: Money) -> Priced:
    return Priced(old, "EUR")


def table(value: Any, version: int, **upcasters: Any) -> PartitionTable[int, Any]:
    steps = {int(name[1:]): given for name, given in upcasters.items()}
    declared: Table[int, Any] = Table(key=int, value=value, version=version, upcasters=steps)
    declared.__set_name__(object, "table")
    return bind(declared)


@given(values)
def test_no_value_of_version_1_begins_with_the_marker(value: Any) -> None:
    assert serde.MsgPack().encode(value)[:1] != MARKER
    assert version_of(serde.MsgPack().encode(value)) == 1


@given(st.text())
def test_no_text_begins_with_the_marker(text: str) -> None:
    assert text.encode()[:1] != MARKER


def test_a_table_of_version_1_has_no_wrapper_and_no_byte_more() -> None:
    plain = bind(Table(key=int, value=Money))
    assert type(plain.serde) is serde.MsgPack
    assert plain.encode(Money(1, 2)) == msgspec.msgpack.encode(Money(1, 2))


def test_two_bytes_hold_the_version() -> None:
    assert table(Money, 2, v1=to_money).encode(Money(1, 2)) == b"\xc1\x02" + msgspec.msgpack.encode(Money(1, 2))


def test_each_step_is_taken_from_whatever_version_is_stored() -> None:
    new = table(Priced, 3, v1=to_money, v2=to_priced)
    old = {
        1: msgspec.msgpack.encode(Cents(250)),
        2: b"\xc1\x02" + msgspec.msgpack.encode(Money(3, 50)),
        3: b"\xc1\x03" + msgspec.msgpack.encode(Priced(Money(4, 50), "CZK")),
    }
    new.load(list(old), list(old.values()))
    new.loaded()
    assert {key: new[key] for key in old} == {
        1: Priced(Money(2, 50), "EUR"),
        2: Priced(Money(3, 50), "EUR"),
        3: Priced(Money(4, 50), "CZK"),
    }
    assert new.stored == old
    assert not new.freeze().keys, "reading is no writing"


def test_an_upcaster_gets_the_same_whether_the_value_was_stored_or_made_by_the_one_before() -> None:
    seen: list[Any] = []

    def plain(old: Any) -> Priced:
        seen.append(old)
        return Priced(Money(old["whole"], old["hundredths"]), "EUR")

    new = table(Priced, 3, v1=to_money, v2=plain)
    stored = [msgspec.msgpack.encode(Cents(250)), b"\xc1\x02" + msgspec.msgpack.encode(Money(2, 50))]
    assert [new.decode(data) for data in stored] == [Priced(Money(2, 50), "EUR")] * 2
    assert seen == [{"whole": 2, "hundredths": 50}] * 2


def test_an_annotated_upcaster_gets_its_type_from_one_that_returns_plain_values() -> None:
    new = table(Priced, 3, v1=lambda old: {"whole": old["cents"] // 100, "hundredths": 0}, v2=to_priced)
    assert new.decode(msgspec.msgpack.encode(Cents(250))) == Priced(Money(2, 0), "EUR")


def test_a_handler_gets_the_same_before_and_after_the_key_is_written() -> None:
    new = table(Money, 2, v1=lambda old: {"whole": old["cents"], "hundredths": 0})
    made = new.decode(msgspec.msgpack.encode(Cents(2)))
    assert made == new.decode(new.encode(made)) == Money(2, 0)


def test_an_upcaster_whose_result_cannot_be_stored_is_named() -> None:
    new = table(Money, 2, v1=lambda old: {"whole": "two"})
    with pytest.raises(UsageError, match=r"upcaster of version 1 returned .*two.* cannot be read as version 2: "):
        new.decode(msgspec.msgpack.encode(Cents(2)))


STEPS: dict[str, tuple[Any, bytes]] = {
    "by its annotation": (to_money, msgspec.msgpack.encode(Cents(250))),
    "as plain values": (lambda old: Money(*divmod(old["cents"], 100)), msgspec.msgpack.encode(Cents(250))),
    "by a type": ((Cents, lambda old: Money(*divmod(old.cents, 100))), msgspec.msgpack.encode(Cents(250))),
    "by another serde": ((serde.Json(Cents), to_money), b'{"cents":250}'),
    "by a serde of one's own": ((serde.Integer(), lambda old: Money(*divmod(old, 100))), b"250"),
}


@pytest.mark.parametrize("how", STEPS)
def test_how_old_bytes_are_decoded(how: str) -> None:
    step, data = STEPS[how]
    assert table(Money, 2, v1=step).decode(data) == Money(2, 50)


@pytest.mark.parametrize(
    ("kind", "value", "old", "step"),
    [
        (serde.Json(Money), Money(2, 50), b'{"cents":250}', to_money),
        (serde.Text(), "250 EUR", b"250", lambda old: f"{old} EUR"),
        (serde.Integer(), 250, b"2", lambda old: 125 * old),
    ],
    ids=["json", "text", "integer"],
)
def test_other_serdes_of_statehold_have_versions_too(
    kind: Any, value: Any, old: bytes, step: Callable[[Any], Any]
) -> None:
    new = table(kind, 2, v1=step).serde
    assert new.decode(old) == new.decode(new.encode(value)) == value


def test_values_are_upcast_once_while_they_stay_decoded() -> None:
    calls = []

    def step(old: Cents) -> Money:
        calls.append(old)
        return to_money(old)

    new = table(Money, 2, v1=step)
    new.load([1], [msgspec.msgpack.encode(Cents(250))])
    new.loaded()
    assert [new[1], new.get(1), new[1]] == 3 * [Money(2, 50)]
    assert calls == [Cents(250)]


def test_a_newer_or_an_abandoned_version_is_not_guessed() -> None:
    new = Versioned(serde.MsgPack(Priced), 3, {2: to_priced})
    with pytest.raises(UnknownSchema, match="a value has version 9, this code reads 2 to 3"):
        new.decode(b"\xc1\x09\x01")
    with pytest.raises(UnknownSchema, match="a value has version 1, this code reads 2 to 3"):
        new.decode(msgspec.msgpack.encode(Cents(1)))
    assert new.unreadable([new.encode(Priced(Money(1, 1), "EUR")), b"\x80", b"\xc1\x02\x80"]) == {1}


REFUSED: list[tuple[Any, int, dict[int, Any], str]] = [
    (int, 0, {}, "versions go from 1 to 255"),
    (int, 256, {}, "versions go from 1 to 255"),
    (int, 2, {}, r"needs upcasters=\{1: \.\.\.\}"),
    (int, 3, {1: abs}, "for every version up to 2"),
    (int, 3, {2: abs, 3: abs}, "for every version up to 2"),
    (int, 1, {1: abs}, "for every version up to 0"),
    (serde.Raw(), 2, {1: abs}, r"the bytes of Raw may begin with 0xC1"),
]


@pytest.mark.parametrize(("kind", "version", "steps", "message"), REFUSED)
def test_what_cannot_work_is_rejected_where_it_is_declared(
    kind: Any, version: int, steps: dict[int, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Table(key=int, value=kind, version=version, upcasters=steps)


def test_version_1_is_the_serde_itself() -> None:
    plain = serde.Raw()
    assert versioned(plain, 1, {}) is plain
