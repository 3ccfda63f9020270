"""A handler catches the error of a send: nothing of it is sent, and a replay raises the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from statehold import Handler, Output, Record, Rekey, Table, on
from statehold.testing import Driver


class Order(msgspec.Struct, frozen=True):
    id: int


def last(key: bytes | None, partitions: int) -> int:
    return partitions - 1


class Careful(Handler[str]):
    """Counts the sends that fail."""

    failed = Table(key=str, value=int)
    keyed = Output("keyed", value=int, key=int)
    placed = Output("placed", value=int, key=int, partitioner=last)
    plain = Output("plain", value=Order)
    either = Output("either", value=dict[str, int])
    spread = Output("spread", value=Order, partitioner=last)

    def on_record(self, record: Record[str]) -> None:
        wrong: Any = record.value
        sends: dict[str, Callable[[], None]] = {
            "key": lambda: self.keyed.send(1, key=wrong),
            "keys": lambda: self.keyed.send_all([1, 2, 3], keys=[1, 2, wrong]),
            "placed keys": lambda: self.placed.send_all([1, 2, 3], keys=[1, 2, wrong]),
            "value": lambda: self.plain.send(wrong),
            "values": lambda: self.plain.send_all([Order(1), wrong]),
            "unencodable": lambda: self.either.send({"a": object()}),  # type: ignore[dict-item]
            "some unencodable": lambda: self.either.send_all([{"a": 1}, {"a": object()}]),  # type: ignore[dict-item]
            "placed values": lambda: self.spread.send_all([Order(1), wrong]),
        }
        try:
            sends[record.value]()
        except Exception:  # noqa: BLE001
            self.failed[record.value] = self.failed.get(record.value, 0) + 1


SENDS = ("key", "keys", "placed keys", "value", "values", "unencodable", "some unencodable", "placed values")


@pytest.mark.parametrize("send", SENDS)
def test_a_replay_raises_what_the_handler_has_caught(send: str) -> None:
    driver = Driver(Careful, delta_interval=3600.0)
    driver.feed(send)
    driver.commit()
    assert driver.table("failed") == {send: 1}
    driver.crash()
    driver.restore()
    assert driver.table("failed") == {send: 1}
    driver.replay()


@pytest.mark.parametrize("send", SENDS)
def test_nothing_is_sent_before_the_record_that_fails(send: str) -> None:
    driver = Driver(Careful)
    driver.feed(send)
    for output in ("keyed", "placed", "plain", "either", "spread"):
        assert driver.sent(output) == []


def test_a_replay_sends_nothing_again() -> None:
    class Sending(Handler[int]):
        plain = Output("plain", value=int)
        keyed = Output("keyed", value=int, key=int)
        placed = Output("placed", value=int, partitioner=last)
        by = Rekey("by", key=int, value=int)

        @on("rows", value=int)
        def row(self, record: Record[int]) -> None:
            self.plain.send_all([1, 2])
            self.keyed.send(1, key=1)
            self.placed.send_all([1, 2], keys=["a", "b"])
            self.by.send(1, key=1)

        @on(by)
        def ignored(self, record: Record[int, int]) -> None: ...

    driver = Driver(Sending, delta_interval=3600.0)
    driver.feed(1)
    driver.commit()
    sent = {output: driver.sent(output) for output in ("plain", "keyed", "placed")}
    assert [len(each) for each in sent.values()] == [2, 1, 2]
    driver.crash()
    driver.restore()
    driver.commit()
    assert {output: driver.sent(output) for output in sent} == sent
    driver.feed(1)
    assert len(driver.sent("plain")) == 4
    driver.replay()
