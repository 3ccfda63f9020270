"""Two inputs, and a state by key that moves to another partition with its key: a chain, a window and a join each."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from tests.support.apps.chained import following
from tests.support.apps.tally import Event

from statehold import Handler, JoinBuffer, Output, Record, Table, Tumbling, on


class KeyLink(msgspec.Struct, frozen=True):
    """One handled record, and the link that depends on all records of the key before it."""

    key: str
    topic: str
    partition: int
    offset: int
    id: int
    amount: int
    link: int


def keyed(first: str, second: str, output: str) -> type[Handler[Event]]:
    """The handler with its topics."""

    class Keyed(Handler[Event]):
        links = Table(key=str, value=int)
        minutes = Tumbling(timedelta(days=9), key=str, value=int)
        pairs = JoinBuffer(timedelta(days=9), key=str, left=int, right=int)
        out = Output(output, value=KeyLink)

        @on(first, value=Event)
        def left(self, record: Record[Event]) -> None:
            self.pairs.left(record, _key(record), record.value.amount)
            self._add(record)

        @on(second, value=Event)
        def right(self, record: Record[Event]) -> None:
            self.pairs.right(record, _key(record), record.value.amount)
            self._add(record)

        def _add(self, record: Record[Event]) -> None:
            key, event = _key(record), record.value
            self.minutes.update(record, key, lambda count: (count or 0) + 1)
            before = self.links.get(key, 1)
            link = self.links[key] = following(before, record.topic, record.offset, event.amount)
            self.out.send(KeyLink(key, record.topic, self.partition, record.offset, event.id, event.amount, link), key)

        def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
            """Do nothing: the windows of a test stay open."""

    return Keyed


def _key(record: Record[Event]) -> str:
    return (record.key or b"").decode()


def first_of(key: tuple[str, object], value: object) -> str:
    """Return the record's key of a window or of a row of the join."""
    return key[0]
