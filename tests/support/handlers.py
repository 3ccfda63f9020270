"""Handlers for the tests, and what they must lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from statehold import Handler, Output, Record, Table
from statehold.api.handler import EffectKey
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord
from statehold.testing import Driver

Interval = float | Literal["commit", "off"]
Mode = Literal["development", "production"]
MODES: list[Mode] = ["development", "production"]


class Op(msgspec.Struct, frozen=True):
    """One thing to do with one account; not idempotent, so that a record handled twice or never shows."""

    account: str
    amount: int = 0
    close: bool = False
    #: bytes of ballast in the account's value, to make chunks large
    size: int = 0


class Balance(msgspec.Struct, frozen=True):
    total: int = 0
    entries: int = 0
    ballast: bytes = b""


class Accounts(Handler[Op]):
    """A running total per account; an account can be closed and opened again."""

    balances = Table(key=str, value=Balance)
    totals = Output("totals", value=int)

    def on_record(self, record: Record[Op]) -> None:
        op = record.value
        before = self.balances.get(op.account, Balance())
        if op.close:
            self.balances.delete(op.account)
            self.totals.send(-1, key=op.account)
            return
        after = Balance(before.total + op.amount, before.entries + 1, b"x" * op.size)
        self.balances[op.account] = after
        self.totals.send(after.total, key=op.account)


def fold(ops: Iterable[Op]) -> tuple[dict[str, Balance], list[int]]:
    """Accounts and outputs by a recomputation that knows nothing of statehold."""
    totals: dict[str, Balance] = {}
    sent: list[int] = []
    for op in ops:
        before = totals.pop(op.account, Balance())
        if op.close:
            sent.append(-1)
            continue
        totals[op.account] = Balance(before.total + op.amount, before.entries + 1, b"x" * op.size)
        sent.append(totals[op.account].total)
    return totals, sent


def agrees(driver: Driver, ops: Sequence[Op]) -> bool:
    """Whether outputs and state are exactly once, in order, what the input says."""
    totals, sent = fold(ops)
    return driver.outputs("totals") == sent and driver.table("balances") == totals


class Caller(Handler[int]):
    """Side effects, and everything that must be the same in a replay."""

    seen = Table(key=int, value=tuple[float, int, str])
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        draw = record.random()
        self.seen[record.offset] = record.now.timestamp(), draw.randrange(10**9), str(record.uuid(1))
        self.out.send(record.value)
        self.effect(call, record.value)


def call(key: EffectKey, value: int) -> None:
    """An effect that the tests find by its name."""


def in_mode(mode: Mode, interval: Interval) -> Settings:
    """Return the settings of a driver that commits only when `commit` is called. In `development` calls are checked."""
    return Settings(
        service=ServiceSettings(mode=mode),
        snapshot=SnapshotSettings(delta_interval=interval),
        commit=CommitSettings(max_records=1_000_000, early=False),
    )


def with_interval(driver: Driver, interval: Interval) -> None:
    """What the next start of the driver's partitions is configured with."""
    driver.settings = replace(driver.settings, snapshot=SnapshotSettings(delta_interval=interval))


def snapshot(driver: Driver, **changes: float | bool | str) -> None:
    settings: Settings = driver.settings
    changed = replace(settings.snapshot, **changes)  # type: ignore[arg-type]
    driver.settings = replace(settings, snapshot=changed)


def commit_records(driver: Driver, *, past: bool = False) -> list[CommitRecord]:
    """Return the commit records of partition 0; `past`: those that were truncated, too."""
    log = driver.broker.log(driver.names.changelog, 0)
    found = [records.unpack(message.value()) for message in (log.past() if past else log.committed())]
    return [record for record in found if isinstance(record, CommitRecord)]


def events(driver: Driver, name: str) -> list[dict[str, Any]]:
    return [fields for event, fields in driver.events if event == name]


def many(count: int, size: int = 1000) -> list[Op]:
    """So much ballast that a full of it has a chunk for every fourth account."""
    return [Op(f"k{i:03}", i, size=size) for i in range(count)]


def sliced(driver: Driver) -> None:
    """Each chunk of a full snapshot takes longer than a slice may, so that full snapshots are fuzzy."""
    snapshot(driver, chunk_bytes=4096)
    driver.broker.on_chunk = lambda: driver.clock.advance(0.006)


def rewrite(driver: Driver, change: Callable[[CommitRecord], CommitRecord]) -> None:
    """Replace the last commit record."""
    log = driver.broker.log(driver.names.changelog, 0)
    messages = list(log.committed())
    record = records.unpack(messages[-1].value())
    assert isinstance(record, CommitRecord)
    log.replace(messages[-1].offset(), records.pack(change(record)))
