"""Tables on disk whose rows are due: what expires and what closes is what would in memory, in the same order."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from tests.support.files_on_disk import damage_a_row, dropped, from_files, index_of_files, lose_a_row, started_again
from tests.support.handlers import commit_records
from tests.support.inside import lane

from statehold import Dedupe, Handler, Hopping, Output, Record, Session, Table, Tumbling, dead_letter
from statehold.config.settings import Settings
from statehold.disk import dated, tables
from statehold.disk import label as labels
from statehold.disk.disk_state import DiskState
from statehold.disk.rows import check_of
from statehold.errors import LocalStoreFailed, OutcomeUnknown, TransactionAborted, UsageError
from statehold.state.system_names import EXPIRY
from statehold.testing.driver import Driver
from statehold.worker.handler import time_slices

NAMES = ("brief", "sorted", "lists", "seen", "sums", "hops", "visits")
START = 1_000_000_000
#: seconds from the end of a window until it closes
GRACE = 2


class Event(msgspec.Struct, frozen=True):
    key: str
    amount: int


class Kinds(Handler[Event]):
    """One table of each kind, and what it reads from them at each record."""

    brief = Table(key=str, value=int, ttl=5)
    sorted = Table(key=tuple[str, int], value=int, ttl=7, sorted=True)
    lists = Table(key=str, value=list[int], ttl=9, mutable=True)
    seen = Dedupe(key=str, ttl=10, most=40)
    sums = Tumbling(3, grace=GRACE, key=str, value=int)
    hops = Hopping(6, 2, grace=1, key=int, value=int)
    visits = Session(4, key=str, value=int, merge=lambda earlier, later: earlier + later, grace=1)
    out = Output("out", value=str)

    def on_record(self, record: Record[Event]) -> None:
        key, amount = record.value.key, record.value.amount
        self.out.send(f"{key} {self.brief.get(key)} {key in self.brief} {self.seen.seen(key)}")
        if amount % 4 == 0:
            self.brief.delete(key)
        elif amount % 4 < 3:
            self.brief[key] = amount
        self.sorted[key, record.offset % 5] = amount
        held = self.lists.get(key, [])
        held.append(amount)
        self.lists[key] = held[-3:]
        self.sums.update(record, key, lambda total: (total or 0) + amount)
        self.hops.update(record, amount, lambda count: (count or 0) + 1)
        self.visits.update(record, key, lambda total: (total or 0) + amount)
        if amount == 7:
            for start, end, _ in self.visits.at(record, key)[:1]:
                self.visits.delete((key, start, end))
        found = [pair for pair, _ in self.sorted.range((key, 0), (key, 3), reverse=amount % 2 == 0)]
        self.out.send(f"{found} {self.sorted.first()} {self.sorted.last()} {self.visits.at(record, key)}")
        if amount == 8:
            self.out.send(f"{len(self.seen_keys())} {len(self.sums)} {sorted(self.visits)}")

    def seen_keys(self) -> list[str]:
        return [key for key in self.brief if key in self.brief]

    def on_window(self, name: str, key: Any, start: int, end: int, value: int) -> None:
        self.out.send(f"{name} {key} {start} {end} {value}")

    def on_late(self, name: str, key: Any, record: Record[Event]) -> None:
        self.out.send(f"late {name} {key} {record.offset}")


def new(
    kind: type[Handler[Event]], storage: Literal["memory", "disk"], interval: Any = "commit", memory: int = 1_000_000
) -> Driver:
    settings = Settings()
    return Driver(
        kind,
        batch=4,
        settings=replace(
            settings,
            commit=replace(settings.commit, max_records=20),
            snapshot=replace(settings.snapshot, delta_interval=interval),
            state=replace(settings.state, storage=storage, memory=memory),
        ),
    )


def state_of(driver: Driver) -> dict[str, Any]:
    return {name: dict(driver.table(name)) for name in NAMES}


def feed_some(driver: Driver, seed: int, count: int, now: int, keys: int = 12) -> int:
    """Feed records whose time passes, some of them late; return the newest time."""
    rnd = random.Random(seed)
    for _ in range(count):
        now += rnd.choice((0, 0, 1, 50, 300, 700, 700, 6000 if rnd.random() < 0.1 else 100))
        late = rnd.choice((0, 0, 0, 0, 900, 4000))
        driver.feed(Event(f"k{rnd.randrange(keys)}", rnd.randrange(1, 9)), timestamp=now - late)
    return now


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop decoded values early, read few entries ahead, and sort in short runs."""
    monkeypatch.setattr(tables, "_EACH", 5_000)
    monkeypatch.setattr(dated, "_FEW", 2)
    monkeypatch.setattr(dated, "_MANY", 3)
    monkeypatch.setattr(dated, "_RUN", 7)
    monkeypatch.setattr(dated, "_WRITE", 5)


def disturbed(driver: Driver, seed: int, number: int, event: int, count: int, now: int) -> int:
    """Feed round `number` of a history, whose commit may fail; return the time of its end."""
    if number and event < 2:
        driver.broker.fail("commit", (TransactionAborted if event else OutcomeUnknown)("injected"))
    later = feed_some(driver, 100 * seed + number, count, now, 12 if number % 3 else 60)
    driver.advance(2.0)
    return later


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [1, 2, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 3, 5, 6, 7))])
def test_any_history_is_that_of_tables_in_memory(seed: int) -> None:
    """With kills, aborts, files of an earlier transaction, full snapshots, and deltas that wait (rules X1, X5, X6)."""
    rnd = random.Random(seed)
    interval = "commit" if seed % 2 else 5.0
    disk, memory = new(Kinds, "disk", interval), new(Kinds, "memory", interval)
    now, kept = START, None
    for number in range(10):
        event, after, count = rnd.randrange(6), rnd.randrange(6), rnd.randrange(5, 45)
        later = now
        for driver in (disk, memory):
            later = disturbed(driver, seed, number, event, count, now)
            if after == 3:
                driver.commit()
                driver.take_full()
        now = later
        if after == 4:
            disk.commit()
            memory.commit()
            kept = deepcopy(disk.files.files[0])
        elif after == 5:
            if kept is not None and rnd.random() < 0.5:
                disk.files.files[0] = deepcopy(kept)
            elif rnd.random() < 0.3:
                disk.files.files[0].clear()
            started_again(disk)
            started_again(memory)
        assert state_of(disk) == state_of(memory), number
    for driver in (disk, memory):
        driver.advance(6.0)
        driver.feed(Event("last", 1), timestamp=now)
        driver.commit()
    assert disk.outputs("out") == memory.outputs("out")
    assert disk.commit_record().digest == memory.commit_record().digest
    started_again(disk)
    assert from_files(disk)
    assert state_of(disk) == state_of(memory)
    disk.replay()
    assert index_of_files(disk) == recomputed(disk)


class Failing(Exception):
    """Raised after all writes of a record."""


class Fails(Kinds):
    """Some records become dead letters, and their writes and due rows are rolled back."""

    on_failure: ClassVar = {Failing: dead_letter(ordered=False)}

    def on_record(self, record: Record[Event]) -> None:
        super().on_record(record)
        if record.value.amount in (3, 6):
            raise Failing(str(record.offset))


def cuts(driver: Driver) -> list[Any]:
    """Return where transactions ended, and the rows that those which ended before their record had handed over."""
    return [(each.n, each.positions, each.pinned) for each in commit_records(driver)]


def failed(driver: Driver) -> list[tuple[int, str]]:
    return [(each.offset, each.text) for each in driver.dead_letters()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "seed", [4, 31, 45, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 6, 9, 13, 18, 25, 29, 39, 52, 66))]
)
def test_records_that_fail_between_slices_leave_what_they_would_in_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end their slices at the same rows, although a rollback leaves entries of no row in the index in memory.

    Otherwise a record that fails behind a slice would have advanced the time by one slice more or less.
    """
    rnd = random.Random(seed)
    monkeypatch.setattr(time_slices, "ROWS", 1 + seed % 3)
    interval = "commit" if seed % 2 else 5.0
    disk, memory = new(Fails, "disk", interval), new(Fails, "memory", interval)
    now, rounds, sliced = START, 0, 0
    for number in range(6):
        event, after, count = rnd.randrange(6), rnd.randrange(6), rnd.randrange(5, 30)
        later = now
        for driver in (disk, memory):
            later = disturbed(driver, seed, number, event, count, now)
            driver.commit()
            if after > 3:
                driver.take_full()
        now = later
        if after in (3, 5):
            started_again(disk)
            started_again(memory)
        assert cuts(disk) == cuts(memory), number
        assert disk.outputs("out") == memory.outputs("out"), number
        assert state_of(disk) == state_of(memory), number
        assert disk.commit_record().digest == memory.commit_record().digest, number
        assert failed(disk) == failed(memory), number
        rounds, sliced = number + 1, sum(bool(each.pinned) for each in commit_records(disk))
    assert (rounds == 6, sliced > 1, len(failed(disk)) > 9) == (True, True, True)


def recomputed(driver: Driver) -> dict[str, list[tuple[int, Any]]]:
    """Return the entries that the rows in the files ask for: the end of a window, or the value of the others."""
    found: dict[str, list[tuple[int, Any]]] = {}
    files = driver.files.files[0].tables
    for name in index_of_files(driver):
        rows = files.get(name, {}).items()
        if name in ("sums", "hops", "visits"):  # the last 9 bytes of the key are the end
            entries = [(int.from_bytes(place[-9:], "big") - (1 << 63), place) for place, _ in rows]
        else:
            entries = [(msgspec.msgpack.decode(row[8:]), place) for place, row in rows]
        found[name] = sorted(entries)
    return found


@pytest.mark.usefixtures("small")
def test_a_restore_from_kafka_makes_the_same_index() -> None:
    driver = new(Kinds, "disk")
    feed_some(driver, 1, 120, START, keys=30)
    driver.commit()
    before = deepcopy(driver.files.files[0].tables)
    driver.files.files[0].clear()
    started_again(driver)
    assert not from_files(driver)
    assert not driver.files.files[0].tables.pop(dated.SORTING, None)
    assert driver.files.files[0].tables == {name: rows for name, rows in before.items() if name != dated.SORTING}


def test_memory_holds_no_entry_of_what_the_files_have() -> None:
    """Of 400 keys that are due later it has those that were read ahead."""
    driver = new(Kinds, "disk")
    for number in range(400):
        driver.feed(Event(f"k{number}", 1), timestamp=START)
    driver.commit()
    driver.feed(Event("k", 1), timestamp=START)
    driver.commit()
    held = [table for table in lane(driver).engine().state.tables.values() if isinstance(table, dated.DueDiskTable)]
    assert {table.name for table in held} == {
        *("seen", "sums", "hops", "visits"),
        *(f"{EXPIRY}{name}" for name in ("brief", "sorted", "lists")),
    }
    for table in held:
        assert len(table.stored.unwritten) + len(table._index) <= 20, table.name


def test_the_status_which_another_thread_asks_for_reads_no_file() -> None:
    """Otherwise two threads would read ahead in one index, and rows would be due in another order."""
    driver = with_windows()
    worker, engine = lane(driver).worker, lane(driver).engine()
    assert isinstance(engine.state, DiskState)
    event_time = engine.event_time
    assert event_time is not None
    due = event_time.due
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.state.store, "snapshot", lambda: pytest.fail("the status reads the files"))
        for table in engine.state.tables.values():
            if isinstance(table, dated.DueDiskTable):
                table.filed()  # as after each write to the files
        live = worker.status().live
    assert live is not None
    assert live.timer == due / 1000


class Patient(Kinds):
    sums = Tumbling(3, grace=2 * GRACE, key=str, value=int)


class Hasty(Kinds):
    sums = Tumbling(3, grace=0, key=str, value=int)


@pytest.mark.parametrize("kind", [Patient, Hasty])
def test_another_grace_holds_for_the_windows_in_the_files(kind: type[Kinds]) -> None:
    """Their entries have the end of a window, not its due time."""
    disk, memory = new(Kinds, "disk"), new(Kinds, "memory")
    for driver in (disk, memory):
        now = feed_some(driver, 3, 60, START)
        driver.commit()
        driver.upgrade(kind)
        assert driver is memory or from_files(driver)
        now = feed_some(driver, 4, 60, now)
        driver.commit()
    assert disk.outputs("out") == memory.outputs("out")
    assert index_of_files(disk) == recomputed(disk)
    disk.take_full()


# Damage (rules X2, X4)


def with_windows() -> Driver:
    driver = new(Kinds, "disk")
    feed_some(driver, 5, 80, START, keys=30)
    driver.commit()
    return driver


def test_a_lost_entry_is_found_at_the_start() -> None:
    driver = with_windows()
    before = state_of(driver)
    lose_a_row(driver.files.files[0].tables["due seen"])
    started_again(driver)
    (cause,) = dropped(driver)
    assert "due seen" in cause
    assert not from_files(driver)
    assert state_of(driver) == before


def test_a_damaged_entry_is_found_when_it_is_read() -> None:
    driver = with_windows()
    damage_a_row(driver.files.files[0].tables["due sums"])
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="checksum"):
        feed_some(driver, 1, 9, START + 10**8)
    driver.restore()
    assert not from_files(driver)
    assert index_of_files(driver) == recomputed(driver)


def test_a_full_snapshot_finds_an_index_that_differs() -> None:
    driver = with_windows()
    rows = driver.files.files[0].tables["due seen"]
    last = max(rows)
    del rows[last]
    later = last[:9] + b"\1other"
    rows[later] = check_of(later)
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="index"):
        driver.take_full()
    driver.restore()
    assert not from_files(driver)
    assert index_of_files(driver) == recomputed(driver)


# Declarations


def test_declarations() -> None:
    class Chosen(Handler[Event]):
        brief = Table(key=str, value=int, ttl=5, storage="disk")
        kept = Table(key=str, value=int, ttl=5, storage="memory")
        seen = Dedupe(key=str, ttl=10, storage="disk")
        sums = Tumbling(timedelta(seconds=3), key=str, value=int, storage="disk")
        visits = Session(4, key=str, value=int, merge=lambda earlier, later: earlier + later)

        def on_record(self, record: Record[Event]) -> None:
            self.brief[record.value.key] = self.kept[record.value.key] = 1
            self.sums.update(record, record.value.key, lambda count: (count or 0) + 1)

        def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
            pass

    driver = new(Chosen, "memory")
    driver.feed(Event("a", 1), timestamp=START)
    driver.commit()
    found = lane(driver).engine().state.tables
    on_disk = {name for name, table in found.items() if isinstance(table, tables.DiskTable)}
    assert on_disk == {"brief", f"{EXPIRY}brief", "seen", "sums"}
    label = labels.decoded(driver.files.files[0].label or b"")
    assert label is not None
    assert {name for name in label.counts if " " in name} == {"due seen", "due sums", f"due {EXPIRY}brief"}
    with pytest.raises(UsageError, match="bytes of their key"):
        Dedupe(key=tuple[str, ...], ttl=5, storage="disk")
    with pytest.raises(UsageError, match="bytes of their key"):
        Tumbling(3, key=tuple[str, ...], value=int, storage="disk")


@pytest.mark.parametrize("mistyped", ["Disk", "disc", "", "memory ", True, ["disk"]])
def test_a_mistyped_storage_is_rejected_where_it_is_declared(mistyped: Any) -> None:
    """Otherwise the table would silently be where `state.storage` says."""
    for declare in (
        lambda: Table(key=str, value=int, storage=mistyped),
        lambda: Dedupe(key=str, ttl=5, storage=mistyped),
        lambda: Tumbling(3, key=str, value=int, storage=mistyped),
        lambda: Hopping(6, 2, key=str, value=int, storage=mistyped),
        lambda: Session(4, key=str, value=int, merge=lambda earlier, later: earlier + later, storage=mistyped),
    ):
        with pytest.raises(UsageError, match="use 'memory' or 'disk'"):
            declare()


def test_a_key_that_does_not_fit_into_the_index_is_the_fault_of_its_record() -> None:
    driver = new(Kinds, "disk")
    for number in range(3):
        driver.feed(Event("a" * 600 if number == 1 else "a", 1), timestamp=START)
    with pytest.raises(Exception, match="table with ttl on disk at most 479"):
        driver.commit()


def test_tables_in_memory_have_no_index_in_files() -> None:
    class Plain(Handler[Event]):
        totals = Table(key=str, value=int, storage="disk")
        brief = Table(key=str, value=int, ttl=5, storage="memory")

        def on_record(self, record: Record[Event]) -> None:
            self.brief[record.value.key] = self.totals[record.value.key] = record.value.amount

    driver = new(Plain, "memory")
    driver.feed(Event("a", 1))
    driver.commit()
    label = labels.decoded(driver.files.files[0].label or b"")
    assert label is not None
    assert not [name for name in (*driver.files.files[0].tables, *label.counts) if " " in name or name == dated.SORTING]
