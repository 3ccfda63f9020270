"""Joins on disk: pairs, unmatched records, late ones and states are those of joins in memory (rules X5, X6)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.driver.test_due_rows_on_disk import cuts
from tests.driver.test_kills_on_disk import CALLS, Killing
from tests.driver.test_tables_on_disk import Killed
from tests.support.files_on_disk import (
    damage_a_row,
    dropped,
    from_files,
    index_of_files,
    local,
    lose_a_row,
    started_again,
)
from tests.support.inside import lane, place

from statehold import BufferedRecord, Call, CallResult, Handler, JoinBuffer, Output, Record, Table, Timer, Tumbling
from statehold.admin.inspection.local_files import LocalTables, verify_files
from statehold.config.settings import Settings
from statehold.disk import dated, disk_state, tables
from statehold.disk.disk_state import WriteBehind
from statehold.disk.kinds.joins import JoinDiskTable
from statehold.disk.kinds.placed import placed_on_disk
from statehold.disk.rows import check_of, packed, unpacked
from statehold.disk.usage import boot_id
from statehold.errors import HandlerFailed, LocalStoreFailed, OutcomeUnknown, TransactionAborted, UsageError
from statehold.testing.driver import Driver
from statehold.testing.memory.clients import StableMemoryReader
from statehold.testing.memory.clock import ManualClock
from statehold.worker.full_snapshots.scrub import Scrub

NAMES = ("inner", "left", "outer", "counts", "sums")
JOINS = NAMES[:3]
START = 1_000_000_000


class Joins(Handler[str]):
    """One join of each kind. It also reads, writes and deletes rows itself, and fails once at `bad`."""

    inner = JoinBuffer(2, key=str, left=str, right=str, grace=1)
    left = JoinBuffer(3, key=str, left=str, right=str, join="left")
    outer = JoinBuffer(1, key=str, left=str, right=str, join="outer", grace=2, mutable=True)
    counts = Table(key=str, value=int)
    sums = Tumbling(3, key=str, value=int)
    out = Output("out", value=str)
    failed = False

    def on_record(self, record: Record[str]) -> None:
        what, key = record.value.split()
        now = record.timestamp
        self.counts[key] = self.counts.get(key, 0) + 1
        self.sums.update(record, key, lambda total: (total or 0) + 1)
        for name, buffer in self.joins():
            if what == "put":
                with suppress(UsageError):  # its time is over
                    buffer.put((key, "left", now, 7), BufferedRecord(left="put", waiting=record.offset % 2 == 0))
            elif what == "delete":
                for row in sorted(row for row in buffer if row[0] == key)[::2]:
                    buffer.delete(row)
            elif what == "read":
                found = sorted(row for row in buffer if row[0] == key)
                kept = [(row, row in buffer, buffer.get(row), buffer[row]) for row in found]
                self.out.send(f"{name} {len(buffer)} {kept} {buffer.get((key, 'left', now, 0))}")
            else:
                add: Any = buffer.left if what == "left" else buffer.right
                self.out.send(f"{name} {record.offset} {add(record, key, f'{key}{record.offset}')}")
        if what == "bad" and not type(self).failed:
            type(self).failed = True
            raise ValueError("bad")

    def joins(self) -> list[tuple[str, JoinBuffer[str, str, str]]]:
        return [("inner", self.inner), ("left", self.left), ("outer", self.outer)]

    def on_unmatched(self, name: str, key: str, side: str, value: str, timestamp: int) -> None:
        self.out.send(f"unmatched {name} {key} {side} {value} {timestamp}")
        self.counts[name] = self.counts.get(name, 0) + 1
        self.schedule(timestamp + 4_000, value)

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"timer {timer.payload} of {timer.record_key!r}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"window {key} {start} {value}")

    def on_late(self, name: str, key: Any, record: Record[str]) -> None:
        self.out.send(f"late {name} {key} {record.offset}")


class JoinsAgain(Joins):
    """The same class for a second driver: `failed` is its own."""


def new(
    kind: type[Handler[str]],
    storage: Literal["memory", "disk"],
    interval: Any = "commit",
    mode: Literal["development", "production"] = "development",
    idle: float = 5.0,
) -> Driver:
    settings = Settings()
    return Driver(
        kind,
        batch=4,
        settings=replace(
            settings,
            service=replace(settings.service, mode=mode),
            commit=replace(settings.commit, max_records=20),
            snapshot=replace(settings.snapshot, delta_interval=interval),
            timers=replace(settings.timers, idle=idle),
            state=replace(settings.state, storage=storage, memory=1_000_000),
        ),
    )


def state_of(driver: Driver) -> dict[str, Any]:
    return {name: dict(driver.table(name)) for name in NAMES}


def feed_some(driver: Driver, seed: int, count: int, now: int, keys: int = 8) -> int:
    """Feed records whose time passes, some of them late; return the newest time."""
    rnd = random.Random(seed)
    for _ in range(count):
        now += rnd.choice((0, 0, 1, 50, 200, 400, 6000 if rnd.random() < 0.1 else 100))
        late = rnd.choice((0, 0, 0, 0, 300, 1500, 4000))
        what = rnd.choice(("left", "left", "left", "right", "right", "right", "put", "delete", "read", "bad"))
        value = f"{what} k{rnd.randrange(keys)}"
        survived(driver, partial(driver.feed, value, timestamp=now - late))
    return now


def survived(driver: Driver, call: Callable[[], object]) -> None:
    """Restore after the one record that fails once."""
    try:
        call()
    except HandlerFailed:
        driver.restore()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop decoded values early, read few entries ahead, and sort in short runs."""
    monkeypatch.setattr(tables, "_EACH", 5_000)
    monkeypatch.setattr(dated, "_FEW", 2)
    monkeypatch.setattr(dated, "_MANY", 3)
    monkeypatch.setattr(dated, "_RUN", 7)
    monkeypatch.setattr(dated, "_WRITE", 5)


def recomputed(driver: Driver) -> dict[str, list[tuple[int, Any]]]:
    """Return the entries that the rows of joins in the files ask for: their times, behind key and side."""
    files = driver.files.files[0].tables
    return {
        name: sorted((int.from_bytes(place[-18:-9], "big") - (1 << 63), place) for place in files.get(name, {}))
        for name in JOINS
    }


def entries(driver: Driver) -> dict[str, list[tuple[int, Any]]]:
    found = index_of_files(driver)
    return {name: found.get(name, []) for name in JOINS}


def disturbed(driver: Driver, seed: int, number: int, event: int, now: int) -> int:
    """Feed round `number` of a history, whose commit may fail; return the time of its end."""
    if number and event < 2:
        driver.broker.fail("commit", (TransactionAborted if event else OutcomeUnknown)("injected"))
    rnd = random.Random(f"{seed} {number}")
    later = feed_some(driver, 100 * seed + number, rnd.randrange(5, 60), now, 8 if number % 3 else 30)
    survived(driver, partial(driver.advance, 2.0))
    return later


def _waiting(waits: int, rows: int) -> WriteBehind:
    """Make what a state makes that has no other."""
    assert rows == 0
    return WriteBehind(waits, seconds=math.inf)


def move_on(driver: Driver, after: str) -> None:
    """Do what follows a round."""
    if after in ("full", "standby", "keep"):
        survived(driver, driver.commit)
    if after == "full":
        driver.take_full()
    elif after == "standby":
        driver.stand_by()
    if after in ("restart", "standby"):
        started_again(driver)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("mode", "waits"), [("development", 0), ("production", 0), ("production", 40)])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
def test_any_history_is_that_of_joins_in_memory(
    seed: int, mode: Literal["development", "production"], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With kills, aborts, files of an earlier transaction, standbys, full snapshots, and deltas that wait.

    `waits`: rows that wait in memory until the files have them.
    """
    monkeypatch.setattr(disk_state, "WriteBehind", partial(_waiting, waits))
    rnd = random.Random(seed)
    interval = "commit" if seed % 2 else 5.0
    Joins.failed = JoinsAgain.failed = False
    disk, memory = new(Joins, "disk", interval, mode), new(JoinsAgain, "memory", interval, mode)
    now, kept = START, None
    for number in range(12):
        event, after = rnd.randrange(6), rnd.choice(("full", "keep", "restart", "restart", "standby", "", ""))
        later = [disturbed(driver, seed, number, event, now) for driver in (disk, memory)]
        now = later[0]
        if after == "restart" and rnd.random() < 0.5:
            if kept is not None:
                disk.files.files[0] = deepcopy(kept)
            elif rnd.random() < 0.5:
                disk.files.files[0].clear()
        move_on(disk, after)
        move_on(memory, after)
        if after == "keep":
            kept = deepcopy(disk.files.files[0])
        assert state_of(disk) == state_of(memory), number
        if cuts(disk) == cuts(memory):
            assert disk.commit_record().digest == memory.commit_record().digest, number
    for _ in range(2):  # the files of a standby replica are others
        for driver in (disk, memory):
            started_again(driver)
            driver.advance(6.0)
            driver.feed("left last", timestamp=now)
            driver.commit()
    assert disk.outputs("out") == memory.outputs("out")
    assert disk.commit_record().digest == memory.commit_record().digest
    assert (Joins.failed, JoinsAgain.failed) == (True, True)
    started_again(disk)
    assert from_files(disk)
    assert state_of(disk) == state_of(memory)
    disk.replay()
    assert entries(disk) == recomputed(disk)


# Sizes


def held(driver: Driver) -> dict[str, JoinDiskTable[Any, Any, Any]]:
    found = lane(driver).engine().state.tables
    return {name: table for name, table in found.items() if isinstance(table, JoinDiskTable)}


def test_memory_holds_no_row_that_the_files_have() -> None:
    driver = new(Joins, "disk")
    for number in range(400):
        driver.feed(f"{('left', 'right')[number % 2]} k{number}", timestamp=START)
    driver.commit()
    driver.feed("read k", timestamp=START)
    driver.commit()
    assert set(held(driver)) == set(JOINS)
    for name, table in held(driver).items():
        assert table.stored.count == 400
        assert len(table.stored.unwritten) + len(table._index) + len(table._by_key().sides["left"]) <= 20, name


def test_rows_that_are_over_are_not_read_at_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay until their segment leaves, and the first row that is still due comes behind them."""
    driver = new(Joins, "disk")
    for number in range(100):
        driver.feed(f"left k{number}", timestamp=START + number)
    driver.feed("right z", timestamp=START + 3_050)
    driver.commit()
    table = held(driver)["left"]
    seen: list[int] = []
    read = dated.DatedDiskTable._read

    def counted(self: Any, after: bytes | None, most: int) -> Any:
        found = read(self, after, most)
        seen.extend(entry[0] for _, entry in found)
        return found

    monkeypatch.setattr(dated.DatedDiskTable, "_read", counted)
    driver.feed("right z", timestamp=START + 3_051)
    driver.commit()
    assert table.stored.count
    assert seen
    assert min(seen) >= START + 3_050


# The index (rules X4, X6)


def with_rows() -> Driver:
    driver = new(Joins, "disk")
    Joins.failed = True
    feed_some(driver, 5, 120, START, keys=30)
    driver.commit()
    return driver


@pytest.mark.usefixtures("small")
def test_a_restore_from_kafka_makes_the_same_rows_and_index() -> None:
    driver = with_rows()
    before = deepcopy(driver.files.files[0].tables)
    driver.files.files[0].clear()
    started_again(driver)
    assert not from_files(driver)
    assert not driver.files.files[0].tables.pop(dated.SORTING, None)
    assert driver.files.files[0].tables == {name: rows for name, rows in before.items() if name != dated.SORTING}
    assert all(entries(driver).values())


class Patient(Joins):
    inner = JoinBuffer(4, key=str, left=str, right=str, grace=3)
    left = JoinBuffer(5, key=str, left=str, right=str, join="left")
    outer = JoinBuffer(3, key=str, left=str, right=str, join="outer", grace=2, mutable=True)


class Hasty(Joins):
    inner = JoinBuffer(1, key=str, left=str, right=str)
    left = JoinBuffer(1, key=str, left=str, right=str, join="left")
    outer = JoinBuffer(1, key=str, left=str, right=str, join="outer", mutable=True)


class OtherSides(Joins):
    left = JoinBuffer(3, key=str, left=str, right=str, join="outer")
    outer = JoinBuffer(1, key=str, left=str, right=str, join="left", grace=2, mutable=True)


@pytest.mark.parametrize("kind", [Patient, Hasty, OtherSides])
def test_another_within_grace_or_kind_holds_for_the_rows_in_the_files(kind: type[Joins]) -> None:
    """Their entries have the time of a row, not when it is due."""
    Joins.failed = kind.failed = True
    disk, memory = new(Joins, "disk"), new(Joins, "memory")
    for driver in (disk, memory):
        now = feed_some(driver, 3, 80, START)
        driver.commit()
        driver.upgrade(kind)
        assert driver is memory or from_files(driver)
        now = feed_some(driver, 4, 80, now)
        driver.commit()
    assert disk.outputs("out") == memory.outputs("out")
    assert state_of(disk) == state_of(memory)
    assert entries(disk) == recomputed(disk)
    disk.take_full()


def test_a_lost_entry_is_found_at_the_start() -> None:
    driver = with_rows()
    before = state_of(driver)
    lose_a_row(driver.files.files[0].tables["due inner"])
    started_again(driver)
    (cause,) = dropped(driver)
    assert "due inner" in cause
    assert not from_files(driver)
    assert state_of(driver) == before


@pytest.mark.parametrize("name", JOINS)
def test_a_damaged_entry_is_found_before_its_row_leaves(name: str) -> None:
    driver = with_rows()
    damage_a_row(driver.files.files[0].tables[f"due {name}"])
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="checksum"):
        feed_some(driver, 1, 30, START + 10**8)
    driver.restore()
    assert not from_files(driver)
    assert entries(driver) == recomputed(driver)


def test_an_entry_without_its_row_is_found_before_it_leaves() -> None:
    """Otherwise the delta would delete a row of which the digest still has the hash."""
    driver = with_rows()
    files = driver.files.files[0].tables
    lost, other = lose_a_row(files["inner"]), max(files["inner"])
    later = other[:-1] + b"\x09"
    files["inner"][later] = packed(later, later, unpacked(other, files["inner"][other]).value)
    assert lost[-18:-9] < later[-18:-9]
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="index"):
        feed_some(driver, 1, 30, START + 10**8)


def test_a_full_snapshot_finds_an_index_that_differs() -> None:
    driver = with_rows()
    rows = driver.files.files[0].tables["due left"]
    last = max(rows)
    del rows[last]
    later = last[:-1] + b"\x09"
    rows[later] = check_of(later)
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="index"):
        driver.take_full()
    driver.restore()
    assert not from_files(driver)
    assert entries(driver) == recomputed(driver)


# Kills, real files, and tools


def lived(driver: Driver) -> Driver:
    """Feed what is not in the input yet; take a full snapshot in between."""
    rnd = random.Random(7)
    whats = ("left", "right", "left", "right", "put", "delete", "read")
    records = [(f"{rnd.choice(whats)} k{rnd.randrange(6)}", START + 150 * number) for number in range(90)]
    while (at := driver.broker.log("input", 0).end) < len(records):
        driver.feed(records[at][0], timestamp=records[at][1])
        if at == 70:
            driver.take_full()
    driver.commit()
    return driver


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["open", *CALLS])
def test_a_kill_at_each_store_call(call: str, moment: str) -> None:
    """Rules X1, X2: afterwards state and outputs are those of a service that was never killed."""
    Joins.failed = JoinsAgain.failed = True
    expected = lived(new(JoinsAgain, "memory", idle=3600.0))
    killed = 0
    for number in (1, 4, 9):
        driver, stores = new(Joins, "disk", idle=3600.0), Killing()
        driver.files = stores
        driver.upgrade(Joins)
        stores.moment, stores.left = moment, {call: number}
        while True:
            try:
                lived(driver)
                break
            except Killed:
                killed += 1
                stores.left = {}
                driver.crash()
                driver.restore()
        assert state_of(driver) == state_of(expected), number
        assert driver.outputs("out") == expected.outputs("out"), number
    assert killed or call in ("clear", "close", "label", "proven", "size")


def test_real_files_have_the_same_rows_and_are_verified(tmp_path: Path) -> None:
    Joins.failed = JoinsAgain.failed = True
    disk, memory = new(Joins, "disk"), new(JoinsAgain, "memory")
    disk.files = local(tmp_path, boot=boot_id())  # type: ignore[assignment]
    disk.upgrade(Joins)
    now = START
    for number in range(4):
        later = now
        for driver in (disk, memory):
            later = feed_some(driver, number, 60, now)
            driver.commit()
            lane(driver).engine().state.close(flush=True)  # otherwise its lock would hold the files
            started_again(driver)
        now = later
        assert from_files(disk)
        assert state_of(disk) == state_of(memory)
    assert disk.outputs("out") == memory.outputs("out")
    disk.take_full()
    state = lane(disk).engine().state
    disk.stop()
    state.close(flush=True)
    reader, tables_of = StableMemoryReader(disk.broker, lambda: False), LocalTables.of(Joins, disk.settings)
    (found,) = verify_files(reader, [place(disk)], tables_of, tmp_path, 1 << 26)
    assert found.good, found.findings
    assert found.rows


def test_the_scrub_counts_the_entries_of_joins() -> None:
    driver, clock = new(Joins, "disk"), ManualClock()
    driver.scrub = scrub = Scrub(0.005, clock, clock)
    driver.feed("left a", timestamp=START)
    driver.commit()
    files = driver.files.files[0]
    files.write({"due inner": {max(files.tables["due inner"]): None}}, files.label)
    while scrub.turn():
        pass
    with pytest.raises(LocalStoreFailed, match=r"scrub.*keys"):
        feed_some(driver, 6, 9, START)


# Declarations


def test_declarations() -> None:
    class Chosen(Joins):
        inner = JoinBuffer(2, key=str, left=str, right=str, grace=1, storage="disk")
        left = JoinBuffer(3, key=str, left=str, right=str, join="left", storage="memory")

    driver = new(Chosen, "memory")
    driver.feed("left a", timestamp=START)
    driver.commit()
    assert set(held(driver)) == {"inner"}

    class Pairs(Joins):
        inner = JoinBuffer[Any, Any, Any](2, key=tuple[str, int], left=str, right=str)

    assert placed_on_disk(Pairs, "disk") == {"left", "outer", "counts", "sums"}
    with pytest.raises(UsageError, match="bytes of their key"):
        JoinBuffer(2, key=tuple[str, int], left=str, right=str, storage="disk")
    with pytest.raises(UsageError, match="use 'memory' or 'disk'"):
        JoinBuffer(2, key=str, left=str, right=str, storage="disc")  # type: ignore[call-overload]


def test_a_key_that_does_not_fit_into_the_files_is_the_fault_of_its_record() -> None:
    driver = new(Joins, "disk")
    for number in range(3):
        driver.feed(f"left {'a' * 460 if number == 1 else 'a'}", timestamp=START)
    with pytest.raises(Exception, match="key of a join on disk at most 479"):
        driver.commit()


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_key_of_another_type_fails_its_record(storage: Literal["memory", "disk"]) -> None:
    class Mistyped(Joins):
        def on_record(self, record: Record[str]) -> None:
            key: Any = 7
            self.inner.left(record, key, "x")

    driver = new(Mistyped, storage)
    driver.feed("left a", timestamp=START)
    with pytest.raises(HandlerFailed, match="cannot be stored as tuple"):
        driver.commit()


def ask(id: str, argument: str) -> str:
    return f"{id} {argument}"


class Asks(Joins):
    """A handler with a call, whose pending calls stay in memory."""

    asked = Call(ask, argument=str, result=str)

    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.asked(record.value, key="k")

    @asked.on_result
    def answered(self, done: CallResult[str, str]) -> None:
        self.out.send(f"answered {done.argument}")


def test_pending_calls_survive_a_start_from_the_files() -> None:
    """They are in memory, and the files have a copy of them."""
    driver = new(Asks, "disk")
    for number in range(5):
        driver.feed(f"left k{number}", timestamp=START + number)
    driver.commit()
    before = dict(driver.table("asked"))
    assert len(before) == 5
    started_again(driver)
    assert from_files(driver)
    assert dict(driver.table("asked")) == before
    assert set(held(driver)) == set(JOINS)
    driver.replay()
