"""A verifier that finds nothing proves nothing: each kind of damage is done here, and must be found."""

from collections.abc import Callable

import msgspec
import pytest
from examples.proof import Event, compare_events, compare_state, digest
from examples.topics import Raw, by_key

from statehold.state.digest import show, table_digest

Damage = Callable[[list[Event]], object]


def stream() -> dict[str, list[Event]]:
    return {key: [{"id": number, "value": number * 2} for number in range(5)] for key in ("a", "b", "c")}


def test_equal_streams_are_equal() -> None:
    findings = compare_events("fills", stream(), stream())
    assert findings.ok
    assert (findings.expected, findings.seen) == (15, 15)


def swap(events: list[Event]) -> None:
    events[1], events[2] = events[2], events[1]


def alter(events: list[Event]) -> None:
    events[3] = events[3] | {"value": 0}


@pytest.mark.parametrize(
    ("damage", "counts"),
    [
        (lambda events: events.pop(), (1, 0, 0, 0, 0)),
        (lambda events: events.pop(0), (1, 0, 0, 0, 0)),
        (lambda events: events.append(events[1]), (0, 1, 0, 0, 0)),
        (lambda events: events.append({"id": 99, "value": 1}), (0, 0, 1, 0, 0)),
        (swap, (0, 0, 0, 1, 0)),
        (alter, (0, 0, 0, 0, 1)),
    ],
)
def test_damage_is_found(damage: Damage, counts: tuple[int, int, int, int, int]) -> None:
    seen = stream()
    damage(seen["b"])
    found = compare_events("fills", stream(), seen)
    assert (found.lost, found.duplicated, found.foreign, found.reordered, found.different) == counts
    assert found.first is not None
    assert found.first.startswith("fills, key b")


def test_a_missing_and_an_unknown_key_are_found() -> None:
    seen = stream()
    seen["d"] = seen.pop("a")
    found = compare_events("fills", stream(), seen)
    assert (found.lost, found.foreign) == (5, 5)


def test_a_key_in_two_partitions_is_rejected() -> None:
    with pytest.raises(ValueError, match="'k' is in partitions 0 and 1"):
        by_key({0: [Raw("k", b"{}")], 1: [Raw("k", b"{}")]})


def test_states_are_compared_by_value() -> None:
    encoded = msgspec.msgpack.encode({"quantity": 3})
    expected = {"positions": {"a/GOLD": {"quantity": 3}}}
    assert [found.ok for found in compare_state(expected, {"positions": {"a/GOLD": encoded}})] == [True]
    missing, foreign = compare_state(expected, {"other": {"a/GOLD": encoded}})
    assert (missing.foreign, foreign.lost) == (1, 1)
    (altered,) = compare_state({"positions": {"a/GOLD": {"quantity": 4}}}, {"positions": {"a/GOLD": encoded}})
    assert altered.different == 1


def test_the_digest_depends_on_table_key_and_value_but_not_on_order() -> None:
    one = {"t": {"a": {"x": 1}, "b": {"x": 2}}}
    assert digest(one) == digest({"t": dict(reversed(one["t"].items()))})
    others = [{"u": one["t"]}, {"t": {"a": {"x": 2}, "b": {"x": 1}}}, {"t": {"a": {"x": 1}}}]
    assert len({digest(one), *map(digest, others)}) == 4


def test_the_digest_is_the_one_of_the_format() -> None:
    rows = {key: {"x": number} for number, key in enumerate("abc")}
    stored = [msgspec.msgpack.encode(row) for row in rows.values()]
    assert digest({"t": rows}) == show(table_digest("t", list(rows), stored))
    numbered = dict(enumerate(rows.values()))
    assert digest({"t": numbered}) == show(table_digest("t", list(numbered), stored))
