"""What a handler sees of a record, and what it may use instead of clocks and chance."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from statehold import Record
from statehold.api.record import MemoryMessage


def record(topic: str = "input", partition: int = 0, offset: int = 0, timestamp: int = 0) -> Record[int]:
    return Record(MemoryMessage(topic, partition, offset, b"1", b"key", [("h", b"v")], timestamp), 1)


places = st.tuples(st.sampled_from(["a", "a/1", "b"]), st.integers(0, 20), st.integers(0, 2**40))


def test_all_of_a_message_is_there() -> None:
    seen = record("trades", 3, 17, 1_500)
    assert (seen.topic, seen.partition, seen.offset, seen.timestamp) == ("trades", 3, 17, 1_500)
    assert (seen.key, seen.value, list(seen.headers)) == (b"key", 1, [("h", b"v")])
    assert seen.now == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


@given(places)
def test_the_same_place_gives_the_same_again(place: tuple[str, int, int]) -> None:
    one, two = record(*place), record(*place, timestamp=99)
    assert one.uuid(2) == two.uuid(2)
    assert [one.random().random() for _ in range(2)] == [two.random().random()] * 2


@given(places, places)
def test_two_places_never_share(one: tuple[str, int, int], other: tuple[str, int, int]) -> None:
    if one != other:
        assert record(*one).uuid() != record(*other).uuid()
        assert record(*one).random().getrandbits(128) != record(*other).random().getrandbits(128)


@given(places, st.integers(0, 99), st.integers(0, 99))
def test_the_identifiers_of_a_record_differ_and_are_well_formed(place: tuple[str, int, int], a: int, b: int) -> None:
    first, second = record(*place).uuid(a), record(*place).uuid(b)
    assert (first == second) == (a == b)
    assert (first.version, first.variant) == (8, uuid.RFC_4122)


def test_the_values_are_the_same_in_every_version_of_statehold() -> None:
    """A replay may run with newer code than the one that wrote the mark."""
    assert str(record("trades", 1, 2).uuid(3)) == PINNED_UUID
    assert record("trades", 1, 2).random().getrandbits(64) == PINNED_BITS


PINNED_UUID = "4d2d7e49-1409-8757-b1aa-9594de295c25"
PINNED_BITS = 16288606356478222406
