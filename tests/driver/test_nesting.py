"""Values that are nested near the interpreter's limit: what was accepted is accepted at every depth of the stack."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold import Handler, Output, Record, Table, dead_letter
from statehold.api.values.serde import MsgPack
from statehold.errors import RecordError, UndecodableRecord
from statehold.messages.command import header
from statehold.messages.dead_letter import DISCARD
from statehold.testing import Driver


class Event(msgspec.Struct, frozen=True):
    id: int = 0


class Typed(Handler[Event]):
    """Unknown fields of a value are skipped, however deep they are."""

    on_failure: ClassVar = {UndecodableRecord: dead_letter()}
    seen = Table(key=int, value=int)

    def on_record(self, record: Record[Event]) -> None:
        self.seen[record.value.id] = record.offset


class Keeping(Handler[dict[str, Any]]):
    """Stores and sends what it gets."""

    on_failure: ClassVar = {UndecodableRecord: dead_letter()}
    held = Table(key=int, value=dict[str, Any], mutable=True)
    sent = Output("sent", value=dict[str, Any])

    def on_record(self, record: Record[dict[str, Any]]) -> None:
        self.held[record.offset] = record.value
        self.sent.send(record.value)
        for offset in self.held:
            self.held.get(offset)


def nested(depth: int) -> bytes:
    return b'{"id":1,"x":' + b"[" * depth + b"]" * depth + b"}"


def at_depth(depth: int, call: Callable[[], object]) -> object:
    """Call it from a deeper stack."""
    return call() if depth == 0 else at_depth(depth - 1, call)


def deepest() -> int:
    """Return how deep a value may be nested that this interpreter decodes from here."""

    def is_decoded(depth: int) -> bool:
        with suppress(RecursionError):
            return msgspec.json.decode(nested(depth)) is not None
        return False

    return bisect(range(100_000), 0, key=lambda depth: 0 if is_decoded(depth) else 1)


@pytest.mark.parametrize("kind", [Typed, Keeping])
def test_what_was_accepted_is_accepted_in_a_replay_from_a_deeper_stack(kind: type[Handler[Any]]) -> None:
    """An accepted value that a replay could not decode would cost the partition its state."""
    accepted, limit = 0, deepest()
    for depth in (3, *range(limit - 280, limit + 20, 5)):
        driver = Driver(kind, delta_interval=3600.0)
        driver.feed(b'{"id":7}')
        driver.feed(nested(depth), key="k")
        driver.commit()
        accepted += not driver.dead_letters()
        digest = driver.commit_record().digest
        driver.crash()
        at_depth(20, driver.restore)
        assert driver.commit_record().digest == digest
        driver.replay()
    assert 1 < accepted < 60, "the depths lie on both sides of the limit"


class Lists:
    """Keys of a serde of the user, of any depth."""

    encode = staticmethod(msgspec.json.Encoder().encode)
    decode = staticmethod(msgspec.json.Decoder(list[Any]).decode)


class ByPath(Handler[int, Annotated[list[Any], Lists()]]):
    """Its keys are nested."""

    on_failure: ClassVar = {UndecodableRecord: dead_letter()}
    seen = Table(key=int, value=int)

    def on_record(self, record: Record[int, list[Any]]) -> None:
        self.seen[record.offset] = record.value


def test_a_key_that_was_accepted_is_accepted_in_a_replay_from_a_deeper_stack() -> None:
    accepted, limit = 0, deepest()
    for depth in (3, *range(limit - 280, limit + 20, 5)):
        driver = Driver(ByPath, delta_interval=3600.0)
        driver.feed(7, key=b"[]")
        driver.feed(8, key=b"[" * depth + b"]" * depth)
        driver.commit()
        accepted += not driver.dead_letters()
        digest = driver.commit_record().digest
        driver.crash()
        at_depth(20, driver.restore)
        assert driver.commit_record().digest == digest
    assert 1 < accepted < 60, "the depths lie on both sides of the limit"


def test_a_command_that_was_accepted_can_be_obeyed() -> None:
    """The thread that reads the control topic has a shorter stack than the one that obeys."""
    for depth in range(600, 1000, 3):
        driver = Driver(Typed)
        driver.feed(Event(1))
        driver.commit()
        log = driver.broker.log(driver.names.control, 0)
        fields: list[Any] = [0, 0, None, None, [], False, -1, "why"]
        value = b"\x99" + b"".join(map(msgspec.msgpack.encode, fields)) + b"\x91" * depth + b"\xc0"
        log.append(value, None, [header(DISCARD, "id", "driver")], 1)
        driver.feed(Event(2))
        with suppress(RecordError):
            at_depth(5, driver.commit)
        driver.advance(1)
        assert driver.table("seen") == {1: 0, 2: 1}


class Numbers(Handler[int]):
    on_failure: ClassVar = {UndecodableRecord: dead_letter()}
    sums = Table(key=str, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.sums["all"] = (self.sums.get("all", 0) + record.value) % 1000


class Texts(Handler[str]):
    on_failure: ClassVar = {UndecodableRecord: dead_letter()}

    def on_record(self, record: Record[str]) -> None:
        assert isinstance(record.value, str)


class Messages(Handler[Annotated[Event, MsgPack(Event)]]):
    on_failure: ClassVar = {UndecodableRecord: dead_letter()}

    def on_record(self, record: Record[Event]) -> None:
        assert isinstance(record.value, Event)


hostile = (
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(msgspec.json.encode)
    | st.builds(
        lambda opening, times: opening * times, st.sampled_from([b"[", b'{"a":', b"\x91"]), st.integers(1, 3000)
    )
    | st.integers(1, 3000).map(nested)
    | st.integers(4000, 6000).map(lambda digits: b"9" * digits)
    | st.none()
)


@given(st.lists(hostile, max_size=6), st.sampled_from([Typed, Keeping, Numbers, Texts, Messages]))
def test_any_bytes_are_a_value_or_an_undecodable_record(values: list[bytes | None], kind: type[Handler[Any]]) -> None:
    driver = Driver(kind)
    for value in values:
        driver.feed(value)
    assert {each.error for each in driver.dead_letters()} <= {"UndecodableRecord"}
    driver.replay()
