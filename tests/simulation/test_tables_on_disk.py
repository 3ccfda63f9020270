"""Random schedules of faults, kills and lost writes with tables on disk: the outcome is what a recomputation says."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import pytest
from tests.simulation.scenarios import (
    BASE,
    LONG,
    SHORT,
    Book,
    Op,
    Size,
    assert_same,
    made,
    texts,
    verified,
    verify_book,
)

from statehold import Dedupe, JoinBuffer, Output, Record, Session, Table, Tumbling
from statehold.disk import dated, tables
from statehold.disk import label as labels
from statehold.disk.kinds.disk_tables import disk_tables
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord
from statehold.state import digest
from statehold.testing.memory.files import MemoryStore, MemoryStores
from statehold.testing.simulation.disks import SLOT
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import shrink, timeline
from statehold.testing.simulation.simulation import InputRecord, RunReport, RunResult, Scenario, run

SEEDS, MORE = 60, 300


class Shelf(Book):
    """As `Book`, with an account that is deleted now and then, a sorted table, and one in memory."""

    totals = Table(key=str, value=int, storage="disk")
    newest = Table(key=tuple[str, int], value=int, storage="disk", sorted=True)
    #: of each account at every second record; the newest offsets of each account say in memory what both have
    odd = Table(key=str, value=int, storage="disk")
    offsets = Table(key=str, value=tuple[int, ...])
    count = Table(key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        account = record.value.account
        self.newest[account, record.offset] = record.offset
        for key, _ in list(self.newest.range((account, 0), (account, record.offset)))[:-1]:
            del self.newest[key]
        self._require_what_was_written(account, record.offset)
        seen = self.count["all"] = self.count.get("all", 0) + 1
        if seen != record.offset + 1 or self.newest.get((account, record.offset)) != record.offset:
            raise AssertionError(f"record {record.offset} is number {seen}")

    def _require_what_was_written(self, account: str, offset: int) -> None:
        """Read what this record, earlier ones of the transaction and committed ones have written and deleted."""
        number = self.count[account] = self.count.get(account, 0) + 1
        if self.odd.get(account) != (self.offsets[account][-1] if number % 2 == 0 else None):
            raise AssertionError(f"record {offset}: odd has {self.odd.get(account)} of {account}")
        if number % 2:
            self.odd[account] = offset
        else:
            del self.odd[account]
        if self.odd.get(account) != (offset if number % 2 else None):
            raise AssertionError(f"record {offset}: odd has {self.odd.get(account)} of {account} after a write")
        kept = self.offsets[account] = (*self.offsets.get(account, ()), offset)[-2:]
        found = [each for (_, each), _ in self.newest.range((account, 0), (account, offset + 1))]
        if found != list(kept):
            raise AssertionError(f"record {offset}: newest has {found} of {account}, not {kept}")


class Forgetful(Book):
    """As `Book`, with tables of each kind whose rows are due, and a join that must equal one in memory."""

    recent = Table(key=str, value=int, ttl=0.15, storage="disk")
    seen = Dedupe(key=str, ttl=0.2, most=3, storage="disk")
    sums = Tumbling(0.2, key=str, value=int, storage="disk")
    visits = Session(0.1, key=str, value=int, merge=lambda earlier, later: earlier + later, storage="disk")
    pairs = JoinBuffer(0.1, key=str, left=int, right=int, join="outer", grace=0.05, storage="disk")
    same = JoinBuffer(0.1, key=str, left=int, right=int, join="outer", grace=0.05, storage="memory")
    #: the newest amount of each account, and sums of all amounts, of those that are open, and of those that came late
    newest = Table(key=str, value=int)
    held = Table(key=str, value=int)
    closed = Output("closed", value=str)

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        account, amount = record.value.account, record.value.amount
        now = self.held["now"] = max(self.held.get("now", 0), record.timestamp)
        left = self.held.get(f"put {account}", now - 1000) + 150 - now
        found, known = self.recent.get(account), self.newest.get(account)
        if (left < 0 and found is not None) or (left > 0 and found != known):
            raise AssertionError(f"record {record.offset}: {account} is {found}, {left} ms before it expires")
        if late := [window for windows in (self.sums, self.visits) for window in windows if window[2] < now]:
            raise AssertionError(f"record {record.offset}: {late} are open at {now}")
        self.recent[account] = self.newest[account] = amount
        self.held[f"put {account}"] = now
        if not self.seen.seen(account) and self.seen.seen(account) is False:
            raise AssertionError(f"record {record.offset}: {account} was not kept")
        for name in ("sums", "visits"):
            self._add(name, amount)
        self.sums.update(record, account, lambda total: (total or 0) + amount)
        self.visits.update(record, account, lambda total: (total or 0) + amount)
        for name, windows in (("sums", self.sums), ("visits", self.visits)):
            if sum(windows.values()) != self.held[name]:
                raise AssertionError(f"record {record.offset}: {name} hold {dict(windows.items())}")

        partners = [
            (each.left if amount % 2 else each.right)(record, account, record.offset)
            for each in (self.pairs, self.same)
        ]
        if partners[0] != partners[1] or sorted(self.pairs) != sorted(self.same):
            raise AssertionError(f"record {record.offset}: partners {partners}, {dict(self.pairs.items())}")

    def on_unmatched(self, name: str, key: str, side: str, value: int, timestamp: int) -> None:
        self.closed.send(f"{name} {key} {side} {value}", partition=self.partition)

    def _add(self, name: str, amount: int) -> None:
        self.held[name] = self.held.get(name, 0) + amount

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self._add(name, -value)
        before = self.held.get("closed", 0)
        if end < before:
            raise AssertionError(f"{name} {key} {start} {end} closes after a window that ends at {before}")
        self.held["closed"] = end
        self.closed.send(f"{name} {key} {start}", partition=self.partition)

    def on_late(self, name: str, key: str, record: Record[Op]) -> None:
        if name in ("sums", "visits"):
            self._add(name, -record.value.amount)


def verify_windows(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    verify_book_and_files(inputs, outcome)
    for partition in range(outcome.application.partitions):
        closed = texts(outcome, "closed", partition)
        assert_same(f"windows of [{partition}]", sorted(set(closed)), sorted(closed))
        pairs, same = ([text.split()[1:] for text in closed if text.startswith(name)] for name in ("pairs", "same"))
        assert_same(f"unmatched records of [{partition}]", sorted(pairs), sorted(same))


def verify_book_and_files(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Rule X1: whatever was lost, the files hold the state of the commit record in their label, which Kafka has."""
    verify_book(inputs, outcome)
    application = outcome.application
    for disk in application.disks.values():
        found = disk_tables(application.kind, application.settings, partial(_same, disk))
        assert found is not None
        for number, files in disk.files.items():
            partition = number % SLOT
            if (label := labels.decoded(files.label or b"")) is None:
                continue
            log = outcome.kafka.log(outcome.names.changelog, partition)
            kept = [records.unpack(message.value()) for message in log.committed()]
            known = [each for each in kept if isinstance(each, CommitRecord)]
            same = [each.identity for each in known if each.n == label.record.n]
            assert same == [label.record.identity] or label.record.n < min(each.n for each in known), label.record
            state = found.state(MemoryStore(disk, files, application.place(outcome.kafka, partition, "test")))
            state.loaded()
            assert digest.to_bytes(state.digest) == label.digest == label.record.digest


def _same(disk: MemoryStores) -> MemoryStores:
    return disk


class World(NamedTuple):
    """What makes starts from local files, or from a standby replica, common."""

    processes: int
    standbys: int
    short: Size
    #: see `Scenario`
    restart: tuple[float, float]


#: Takeovers by a process that has no files; starts of the only process, from its own; takeovers by the one that has a
#: replica, because the other starts late.
WORLDS: Final = (
    World(2, 0, SHORT, (0.2, 6.0)),
    World(1, 0, Size(", restarts", 1, 14, 20.0, 4.0), (0.2, 2.0)),
    World(2, 1, Size(", takeovers", 2, 14, 20.0, 4.0), (12.0, 12.0)),
    World(2, 1, Size(", takeovers", 2, 14, 20.0, 4.0), (12.0, 12.0)),
)


def scenario(seed: int) -> Scenario:
    """Every third one has tables whose rows are due."""
    world = WORLDS[seed % len(WORLDS)]
    size = LONG if seed % 20 == 0 else world.short
    inputs = made(seed, size)
    snapshot = replace(BASE.snapshot, chunk_bytes=4096, keep=1 + seed % 3)
    if seed // len(WORLDS) % 2:
        snapshot = replace(snapshot, delta_interval=size.rare)
    group = replace(BASE.group, standbys=world.standbys)
    settings = replace(BASE, snapshot=snapshot, group=group)
    kind, verify = (Forgetful, verify_windows) if seed % 3 == 1 else (Shelf, verify_book_and_files)
    return Scenario(
        kind,
        inputs,
        settings,
        size.partitions,
        world.processes,
        name="tables on disk",
        verify=partial(verified, verify, inputs),
        restart=world.restart,
    )


def starts(report: RunReport, source: str) -> int:
    """Return the number of starts that say this in their event `restored`."""
    return sum(each.text.startswith("restored") and f"{source}=" in each.text for each in report.observer.timeline)


def run_all(seeds: range) -> None:
    """A third of the starts after a kill or a stop are from local files, and some from a standby replica."""
    from_files = from_replicas = 0
    for seed in seeds:
        report = run(scenario(seed), Schedule.random(seed))
        if report.violation is not None:
            pytest.fail(f"seed {seed}, shrunk:\n{timeline(shrink(report))}", pytrace=False)
        from_files += starts(report, "from_files")
        from_replicas += starts(report, "from_standby")
    assert from_files > len(seeds) / 4
    assert from_replicas > len(seeds) / 60


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    """The runs leave cycles, and a restore makes the collector ignore them."""
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop decoded values early, and read few entries ahead, as in a state of millions of keys."""
    monkeypatch.setattr(tables, "_EACH", 20_000_000)
    monkeypatch.setattr(dated, "_FEW", 2)
    monkeypatch.setattr(dated, "_MANY", 3)


def test_schedules() -> None:
    run_all(range(SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SEEDS, MORE, 80))
def test_more_schedules(block: int) -> None:
    run_all(range(block, block + 80))
