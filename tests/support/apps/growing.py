"""A service whose values change from release to release, by its names: `tests.support.apps.growing:2/NAME/INPUT`.

Release 2 adds a field, release 3 gives one another type.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.apps.tally import Event

from statehold import Handler, Record, Service, Table


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    sum: int = 0


class Dated(msgspec.Struct, frozen=True):
    count: int = 0
    sum: int = 0
    last: int = -1


class Worded(msgspec.Struct, frozen=True):
    count: int = 0
    sum: str = ""
    last: int = -1


class First(Handler[Event]):
    totals = Table(key=str, value=Total)

    def on_record(self, record: Record[Event]) -> None:
        key = (record.key or b"").decode()
        old = self.totals.get(key, Total())
        self.totals[key] = Total(old.count + 1, old.sum + record.value.amount)


class Second(Handler[Event]):
    totals = Table(key=str, value=Dated)

    def on_record(self, record: Record[Event]) -> None:
        key = (record.key or b"").decode()
        old = self.totals.get(key, Dated())
        self.totals[key] = Dated(old.count + 1, old.sum + record.value.amount, record.value.id)


class Third(Handler[Event]):
    totals = Table(key=str, value=Worded)

    def on_record(self, record: Record[Event]) -> None: ...


RELEASES: dict[str, type[Handler[Any]]] = {"1": First, "2": Second, "3": Third}


def __getattr__(name: str) -> Service:
    release, _, rest = name.partition("/")
    service, slash, topic = rest.partition("/")
    if not slash:
        raise AttributeError(name)
    return Service(service, input=topic, handler=RELEASES[release])
