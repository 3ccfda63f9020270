"""The work of `script/bench smoke`: fixed records through the engine, on a broker in memory, without threads or clock.

    python -m benchmarks.smoke_work            processor seconds per work, the least of some runs, as JSON
    python -m benchmarks.smoke_work --once     each work once, within `eval`, for callgrind

Callgrind counts only within a function of C that it knows by name, so each work runs in an `eval` of text, which the
engine itself does not use: its start and the preparation of a work do not count.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from benchmarks.load import FIRST_MS, Trade, trades
from benchmarks.statehold_app import handler_of
from statehold import Dedupe, Handler, JoinBuffer, Output, Record, Table, Tumbling
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.testing import Driver

#: records of each work, and of a transaction
RECORDS: Final = 1_000
_BATCH: Final = 250
_RUNS: Final = 5
#: milliseconds of event time between two records, so that windows close, and rows leave joins
_APART: Final = 4
#: in development tables and outputs check in addition what a handler does
_PRODUCTION: Final = Settings(service=ServiceSettings(mode="production"))


class Windows(Handler[Trade]):
    volumes = Tumbling(1, key=str, value=int)
    closed = Output("closed", value=int)

    def on_record(self, record: Record[Trade]) -> None:
        trade = record.value
        self.volumes.update(record, trade.account, lambda old: (old or 0) + trade.quantity)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.closed.send(value, key)


class Joins(Handler[Trade]):
    sides = JoinBuffer(key=str, left=int, right=int, within=1)
    matched = Output("matched", value=int)

    def on_record(self, record: Record[Trade]) -> None:
        trade = record.value
        add = self.sides.left if trade.side == "BUY" else self.sides.right
        for other in add(record, trade.account, trade.quantity):
            self.matched.send(trade.quantity - other, trade.account)


class Seen(Handler[Trade]):
    ids = Dedupe(key=str, ttl=2)
    counts = Table(key=str, value=int)

    def on_record(self, record: Record[Trade]) -> None:
        trade = record.value
        if not self.ids.seen(trade.id):
            self.counts[trade.account] = self.counts.get(trade.account, 0) + 1


WORKS: Final[dict[str, type[Handler[Any]]]] = {
    "totals": handler_of("totals", batch=False),
    "totals-on-batch": handler_of("totals", batch=True),
    "windows": Windows,
    "join": Joins,
    "dedupe": Seen,
}


def prepared(kind: type[Handler[Any]]) -> Callable[[], None]:
    """Return the work of one handler; its first transaction is over."""
    encode = msgspec.json.Encoder().encode
    records = [
        (encode(each), each.account.encode(), FIRST_MS + i * _APART)
        for i, each in enumerate(trades(_BATCH + RECORDS, accounts=1_000))
    ]
    driver = Driver(kind, settings=_PRODUCTION, batch=_BATCH)
    for value, key, moment in records[:_BATCH]:
        driver.feed(value, key, timestamp=moment)
    log = driver.broker.log("input", 0)
    for value, key, moment in records[_BATCH:-1]:  # not by `feed`, which looks for a batch after each record
        log.append(value, key, None, moment)
    value, key, moment = records[-1]

    def work() -> None:
        driver.feed(value, key, timestamp=moment)
        assert driver.position() == _BATCH + RECORDS

    return work


def seconds(kind: type[Handler[Any]]) -> float:
    """Return the least processor time of some runs."""
    found = []
    for _ in range(_RUNS):
        work = prepared(kind)
        gc.collect()
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    """Run every work."""
    if "--once" not in sys.argv:
        print(json.dumps({name: seconds(kind) for name, kind in WORKS.items()}))
        return
    for name, kind in WORKS.items():
        work = prepared(kind)
        gc.collect()
        print(name, flush=True)
        eval("work()", {"work": work})  # noqa: S307  no text of anyone else


if __name__ == "__main__":
    main()
