"""A handler with a join of each kind, and what it must send: a comparison of every record with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from statehold import Handler, JoinBuffer, Output, Record, Table
from statehold.testing import Driver


class Bid(msgspec.Struct, frozen=True, tag="bid"):
    key: str
    id: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    key: str
    id: int


class Joined(Handler[Bid | Ask]):
    """One join of each kind, and a table that on_unmatched writes."""

    inner = JoinBuffer(2, key=str, left=Bid, right=Ask, grace=1)
    left = JoinBuffer(3, key=str, left=Bid, right=Ask, join="left")
    outer = JoinBuffer(1, key=str, left=Bid, right=Ask, join="outer", grace=2)
    alone = Table(key=str, value=int)
    out = Output("out", value=str)
    #: the id of a record that fails once, after its writes
    failing = -1

    def on_record(self, record: Record[Bid | Ask]) -> None:
        self.join(record, record.value)

    def join(self, record: Record[Any], value: Bid | Ask) -> None:
        for name, buffer in (("inner", self.inner), ("left", self.left), ("outer", self.outer)):
            add: Any = buffer.left if isinstance(value, Bid) else buffer.right
            for partner in add(record, value.key, value):
                self.out.send(f"{name} {value.id} {partner.id}")
        self.out.send(f"record {value.id}")
        if value.id == Joined.failing:
            Joined.failing = -1
            raise ValueError("cannot do that")

    def on_unmatched(self, name: str, key: str, side: str, value: Bid | Ask, timestamp: int) -> None:
        assert key == value.key
        count = self.alone[name] = self.alone.get(name, 0) + 1
        self.out.send(f"{name} {side} {value.id} at {timestamp} number {count}")

    def on_late(self, name: str, key: str, record: Record[Any]) -> None:
        self.out.send(f"{name} late {record.value.id}")


class Taken(NamedTuple):
    """A record in its place among the events of a partition."""

    event: int
    id: int
    side: str
    key: str
    time: int
    #: the partition's time at it
    now: int


class BruteForce:
    """What is expected of records and ticks: lists alone, and a comparison of each pair."""

    #: name, kind, within, grace in milliseconds, in the order in which `Joined` calls them
    JOINS = (("inner", "inner", 2000, 1000), ("left", "left", 3000, 0), ("outer", "outer", 1000, 2000))
    WITHOUT: dict[str, set[str]] = {"inner": set(), "left": {"bid"}, "outer": {"bid", "ask"}}  # noqa: RUF012

    def __init__(self, happened: Sequence[tuple[Bid | Ask | None, int]]) -> None:
        now, self.times, self.taken = 0, [], []
        for event, (value, time) in enumerate(happened):
            now = max(now, time)
            self.times.append(now)
            if value is not None:
                side = "bid" if isinstance(value, Bid) else "ask"
                self.taken.append(Taken(event, value.id, side, value.key, time, now))
        lines: list[tuple[Any, ...]] = [(r.event, 2, f"record {r.id}") for r in self.taken]
        #: by join the rows whose time is not over
        self.rows: dict[str, dict[tuple[str, str, int, int], tuple[int, bool]]] = {}
        for place, (name, kind, within, grace) in enumerate(self.JOINS):
            lasts = within + grace
            kept = [r for r in self.taken if r.now <= r.time + lasts]
            lines += [(r.event, 1, place, f"{name} late {r.id}") for r in self.taken if r not in kept]
            paired: set[int] = set()
            for second in kept:
                for first in kept:
                    if (
                        first.event < second.event
                        and first.key == second.key
                        and first.side != second.side
                        and abs(first.time - second.time) <= within
                        and second.now <= first.time + lasts
                    ):
                        paired |= {first.event, second.event}
                        lines.append(
                            (second.event, 1, place, first.time, first.event, f"{name} {second.id} {first.id}")
                        )
            rows = self.rows[name] = {}
            for r in kept:
                twins = [t for t in kept if (t.key, t.side, t.time) == (r.key, r.side, r.time)]
                waits = r.event not in paired and r.side in self.WITHOUT[kind]
                ended = next((e for e, at in enumerate(self.times) if at > r.time + lasts), None)
                side = "left" if r.side == "bid" else "right"
                if ended is None:
                    rows[r.key, side, r.time, twins.index(r)] = r.id, waits
                elif waits:
                    order = r.time + lasts, name, r.key, side, r.time, r.event
                    lines.append((ended, 0, *order, f"{name} {side} {r.id} at {r.time}"))
        self.lines = sorted(lines, key=lambda line: line[:-1])

    def said(self) -> list[str]:
        counts: dict[str, int] = {}
        found = []
        for line in self.lines:
            text = line[-1]
            if line[1] == 0:
                counts[line[3]] = counts.get(line[3], 0) + 1
                text += f" number {counts[line[3]]}"
            found.append(text)
        return found

    def agrees(self, driver: Driver) -> None:
        assert driver.outputs("out") == self.said()
        now = self.times[-1] if self.times else 0
        for name, _, within, grace in self.JOINS:
            rows = {
                row: ((kept.left or kept.right).id, kept.waiting)
                for row, kept in driver.table(name).items()
                if row[2] + within + grace >= now
            }
            assert rows == self.rows[name]
