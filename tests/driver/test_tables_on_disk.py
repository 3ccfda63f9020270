"""Tables on disk: a handler reads what it would read from memory, whatever was killed, lost, damaged or full."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.files_on_disk import damage_a_row, dropped, from_files, lose_a_row, started_again
from tests.support.inside import lane, tools

from statehold import Handler, Output, Record, Table
from statehold.config.sections.processing import SnapshotSettings
from statehold.config.settings import Settings
from statehold.disk import disk_state, tables
from statehold.disk import label as labels
from statehold.disk.disk_state import WriteBehind
from statehold.disk.label import StoreLabel
from statehold.errors import (
    LocalStoreFailed,
    OutcomeUnknown,
    TransactionAborted,
    UnknownSchema,
    UnstorableValue,
    UsageError,
)
from statehold.snapshot.format import records
from statehold.testing.driver import Driver
from statehold.testing.memory.files import MemoryStore


class Move(msgspec.Struct, frozen=True):
    account: str
    amount: int
    fails: bool = False


class Bank(Handler[Move]):
    balances = Table(key=str, value=int, storage="disk")
    moves = Table(key=tuple[str, int], value=str, storage="disk", sorted=True)
    totals = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        balance = self.balances.get(move.account, 0) + move.amount
        if balance % 5 == 0:
            self.balances.delete(move.account)
            self.out.send(f"{move.account} {move.account in self.balances} {self.balances.get(move.account)}")
        else:
            self.balances[move.account] = balance
        for key, _ in list(self.moves.range((move.account, 0), (move.account, record.offset)))[:-3]:
            del self.moves[key]
        self.moves[move.account, record.offset] = "x" * (move.amount % 7)
        self.totals["all"] = self.totals.get("all", 0) + move.amount
        first, last = self.moves.first(), self.moves.last()
        shown = [key for key, _ in self.moves.range(("a3", 0), ("a5", 0), reverse=True)]
        self.out.send(f"{balance} {len(self.balances)} {len(self.moves)} {first} {last} {shown}")
        if move.fails and not self.replaying:
            raise ValueError("once")


class InMemory(Bank):
    balances = Table(key=str, value=int, storage="memory")
    moves = Table(key=tuple[str, int], value=str, storage="memory", sorted=True)


TABLES = ("balances", "moves", "totals")


def state_of(driver: Driver) -> dict[str, Any]:
    return {name: dict(driver.table(name)) for name in TABLES}


def feed(driver: Driver, moves: list[Move]) -> None:
    for move in moves:
        driver.feed(move)


def some(count: int, seed: int = 1, accounts: int = 9) -> list[Move]:
    rnd = random.Random(seed)
    return [Move(f"a{rnd.randrange(accounts)}", rnd.randrange(1, 9)) for _ in range(count)]


def new(kind: type[Handler[Move]] = Bank, **state: Any) -> Driver:
    settings = Settings()
    commit = replace(settings.commit, max_records=20)
    return Driver(kind, settings=replace(settings, commit=commit, state=replace(settings.state, **state)))


def test_a_handler_reads_what_it_reads_from_memory() -> None:
    """With kills, aborted commits, and so little memory that values are dropped and read again."""
    rnd = random.Random(7)
    disk, memory = new(memory=1_000_000), new(InMemory)
    for number in range(12):
        moves = some(60, number, accounts=9 if number < 9 else 3000)
        abort = rnd.random() < 0.3
        for driver in (disk, memory):
            if abort:
                driver.broker.fail("commit", TransactionAborted("injected"))
            feed(driver, moves)
            if number % 3 == 1:
                started_again(driver)
            if number % 4 == 1:
                driver.take_full()
        assert state_of(disk) == state_of(memory)
    assert disk.outputs("out") == memory.outputs("out")
    assert disk.commit_record().digest == memory.commit_record().digest
    assert from_files(disk)
    assert dropped(disk) == []


def test_development_mode_and_mutable_values_are_as_in_memory() -> None:
    class Lists(Handler[Move]):
        lists = Table(key=str, value=list[int], mutable=True, storage="disk")

        def on_record(self, record: Record[Move]) -> None:
            held = self.lists.get(record.value.account, [])
            held.append(record.value.amount)
            self.lists[record.value.account] = held

    driver = Driver(Lists)
    feed(driver, some(50))
    started_again(driver)
    assert sum(map(len, driver.table("lists").values())) == 50


def test_a_batch_of_deletes_and_reads_between_two_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted key stays deleted while its delete is frozen, and an aborted value is not read again."""

    class Plain(Handler[Move]):
        balances = Table(key=str, value=int, storage="disk")
        out = Output("out", value=str)

        def on_record(self, record: Record[Move]) -> None:
            key = record.value.account
            self.out.send(f"{key} {self.balances.get(key)} {key in self.balances}")
            if record.value.amount % 3 == 0:
                self.balances.delete(key)
            else:
                self.balances[key] = self.balances.get(key, 0) + record.value.amount

    class Expected(Plain):
        balances = Table(key=str, value=int, storage="memory")

    monkeypatch.setattr(tables, "_EACH", 5_000)  # so the older of 100 values are dropped
    driver, expected = new(Plain, memory=1_000_000), new(Expected)
    for number in range(30):
        moves = some(100, number, accounts=400)
        for each in (driver, expected):
            if number % 3 == 1:
                each.broker.fail("commit", TransactionAborted("injected"))
            feed(each, moves)
    assert driver.outputs("out") == expected.outputs("out")
    held = lane(driver).engine().state.tables["balances"]
    assert isinstance(held, tables.DiskTable)
    assert held.in_memory <= 300


# A start from the files


def test_a_start_after_a_kill_reads_the_files_and_the_deltas_after_them() -> None:
    driver = new()
    feed(driver, some(100))
    driver.commit()
    older = deepcopy(driver.files.files[0])
    feed(driver, some(100, 2))
    driver.commit()
    before = state_of(driver)
    driver.files.files[0] = older
    started_again(driver)
    assert from_files(driver)
    assert state_of(driver) == before
    feed(driver, some(50, 3))
    started_again(driver)
    assert from_files(driver)


def test_files_are_written_after_the_commit_and_with_its_record() -> None:
    """Rule X1: at each write the newest commit record in Kafka is that of the label, or a later one."""
    driver = new()
    seen: list[tuple[int, int]] = []

    def look(moment: str) -> None:
        if moment == "after" and (data := driver.files.files[0].label) is not None:
            label = labels.decoded(data)
            assert label is not None
            seen.append((label.record.n, newest(driver)))

    driver.files.on_write = look
    driver.feed(Move("a", 1))
    for error in (TransactionAborted("injected"), OutcomeUnknown("injected"), None):
        if error is not None:
            driver.broker.fail("commit", error)
        feed(driver, some(30))
        driver.commit()
    assert len(seen) > 3
    assert all(written <= committed for written, committed in seen)
    started_again(driver)
    assert from_files(driver)


def test_the_files_are_written_with_deltas_only() -> None:
    """Rule X1: otherwise a start from them would forget which keys have changed since the last delta."""
    driver = new()
    driver = Driver(Bank, settings=replace(driver.settings, snapshot=SnapshotSettings(delta_interval=5.0)))
    feed(driver, some(40))
    driver.commit()
    assert not driver.commit_record().delta
    label = labels.decoded(driver.files.files[0].label or b"")
    assert label is not None
    assert label.record.n < driver.commit_record().n
    started_again(driver)
    assert from_files(driver)
    driver.advance(6.0)
    feed(driver, some(5, 1))
    driver.commit()
    assert driver.commit_record().delta
    before = state_of(driver)
    driver.files.files[0].clear()
    started_again(driver)
    assert not from_files(driver)
    assert state_of(driver) == before


def newest(driver: Driver) -> int:
    log = driver.broker.log(driver.names.changelog, 0)
    found = [records.unpack(message.value()) for message in log.committed()]
    return max(each.n for each in found if isinstance(each, records.CommitRecord))


def changed(driver: Driver, change: Callable[[StoreLabel], StoreLabel]) -> None:
    files = driver.files.files[0]
    assert files.label is not None
    label = labels.decoded(files.label)
    assert label is not None
    files.label = labels.encode(change(label))


def other_generation(label: StoreLabel) -> StoreLabel:
    record = msgspec.structs.replace(label.record, lineage="another")
    return msgspec.structs.replace(label, commit_record=records.pack(record))


def other_session(label: StoreLabel) -> StoreLabel:
    record = msgspec.structs.replace(label.record, attempt="another")
    return msgspec.structs.replace(label, commit_record=records.pack(record))


def later_transaction(label: StoreLabel) -> StoreLabel:
    record = label.record
    ahead = msgspec.structs.replace(record, n=record.n + 5, last_delta=record.n + 5)
    return msgspec.structs.replace(label, commit_record=records.pack(ahead))


CHANGES: dict[str, Callable[[StoreLabel], StoreLabel]] = {
    "state generation": other_generation,
    "is gone": other_session,
    "transaction": later_transaction,
    "digest": lambda label: msgspec.structs.replace(label, digest=bytes(16)),
    "types": lambda label: msgspec.structs.replace(label, fingerprint=1),
    "release": lambda label: msgspec.structs.replace(label, format=99),
    "keys": lambda label: msgspec.structs.replace(label, counts={**label.counts, "balances": 1}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_files_of_another_state_are_dropped(what: str) -> None:
    """Rule X2: the state comes from Kafka then, an event says so, and the files are filled again."""
    driver = new()
    feed(driver, some(100))
    before = state_of(driver)
    changed(driver, CHANGES[what])
    started_again(driver)
    assert not from_files(driver)
    (cause,) = dropped(driver)
    assert what in cause
    assert state_of(driver) == before
    started_again(driver)
    assert from_files(driver)
    assert state_of(driver) == before


def test_files_older_than_the_kept_deltas_are_dropped() -> None:
    driver = new()
    feed(driver, some(60))
    driver.commit()
    older = deepcopy(driver.files.files[0])
    for number in range(5):
        feed(driver, some(60, number))
        assert driver.take_full() is not None
    before = state_of(driver)
    driver.files.files[0] = older
    started_again(driver)
    assert not from_files(driver)
    assert len(dropped(driver)) == 1
    assert state_of(driver) == before


def test_a_changed_row_is_found_when_it_is_read() -> None:
    """Rule X4: no record is to blame, the files are dropped, and the next start restores from Kafka."""
    driver = new()
    feed(driver, [Move("a", 1), Move("b", 2)])
    driver.commit()
    place = damage_a_row(driver.files.files[0].tables["balances"])
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="checksum"):
        driver.feed(Move(place[1:].decode(), 1))
    driver.restore()
    assert not from_files(driver)
    assert dict(driver.table("balances")) == {"a": 2, "b": 2}


def test_a_full_snapshot_finds_files_that_differ() -> None:
    """Rule X4: it reads all rows, and compares their digest with the commit record's."""
    driver = new()
    feed(driver, some(100))
    driver.commit()
    rows = driver.files.files[0].tables["balances"]
    lost = lose_a_row(rows)
    changed(driver, lambda label: msgspec.structs.replace(label, counts={**label.counts, "balances": len(rows)}))
    started_again(driver)
    assert from_files(driver)
    with pytest.raises(LocalStoreFailed, match="digest"):
        driver.take_full()
    driver.restore()
    assert not from_files(driver)
    assert lost[1:].decode() in driver.table("balances")


# Faults of the process and of the disk


class Killed(BaseException):
    """Nothing runs after SIGKILL."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [1, 2, 5])
def test_a_kill_at_a_write_loses_and_repeats_nothing(moment: str, write: int) -> None:
    expected = new(InMemory)
    feed(expected, some(200))
    driver, left = new(), [write]

    def kill(at: str) -> None:
        left[0] -= at == moment
        if left[0] == 0:
            raise Killed

    driver.feed(some(200)[0])
    driver.files.on_write = kill
    fed = 1
    try:
        for move in some(200)[1:]:
            fed += 1
            driver.feed(move)
        driver.commit()
    except Killed:
        driver.files.on_write = lambda at: None
        started_again(driver)
        assert from_files(driver)
        feed(driver, some(200)[fed:])
    assert left[0] <= 0
    assert state_of(driver) == state_of(expected)
    assert driver.outputs("out") == expected.outputs("out")


def test_a_full_disk_stops_the_partition_until_there_is_room() -> None:
    driver, expected = new(), new(InMemory)
    feed(driver, some(50))
    feed(expected, some(50))
    driver.commit()
    driver.files.full = True
    with pytest.raises(LocalStoreFailed, match="space"):
        feed(driver, some(50, 2))
    with pytest.raises(LocalStoreFailed, match="space"):
        driver.restore()
    driver.files.full = False
    driver.restore()
    fed = driver.broker.log("input", 0).end - 50
    feed(driver, some(50, 2)[fed:])
    feed(expected, some(50, 2))
    assert state_of(driver) == state_of(expected)
    assert driver.outputs("out") == expected.outputs("out")


def test_a_clean_stop_and_a_start() -> None:
    driver = new()
    feed(driver, some(100))
    before = state_of(driver)
    driver.stop()
    driver.restore()
    assert from_files(driver)
    assert state_of(driver) == before


def test_deltas_every_few_seconds_start_from_the_last_one() -> None:
    settings = Settings()
    settings = replace(settings, snapshot=replace(settings.snapshot, delta_interval=5.0))
    driver, expected = Driver(Bank, settings=settings), Driver(InMemory, settings=settings)
    for number in range(6):
        for each in (driver, expected):
            feed(each, some(40, number))
            each.advance(2.0)
            if number in (2, 4):
                started_again(each)
        assert state_of(driver) == state_of(expected)
    assert from_files(driver)
    assert driver.outputs("out") == expected.outputs("out")


# Declarations and settings


def test_a_release_with_other_types_drops_the_files() -> None:
    class Wider(Bank):
        more = Table(key=str, value=int, storage="disk")

    driver = new()
    feed(driver, some(40))
    driver.upgrade(Wider)
    assert len(dropped(driver)) == 1
    assert not from_files(driver)


def test_a_release_that_no_longer_reads_an_old_version_is_rejected_as_with_memory() -> None:
    class Versions(Handler[Move]):
        def on_record(self, record: Record[Move]) -> None:
            self.amounts[record.value.account] = self.amounts.get(record.value.account, 0) + 1

        amounts: Table[str, int]

    class First(Versions):
        amounts = Table(key=str, value=int, storage="disk")

    class Third(Versions):
        amounts = Table(key=str, value=int, storage="disk", version=3, upcasters={1: int, 2: int})

    class Later(Versions):
        amounts = Table(key=str, value=int, storage="disk", version=3, upcasters={2: int})

    driver = Driver(First)
    feed(driver, some(30, accounts=20))
    driver.upgrade(Third)
    driver.feed(Move("a1", 1))
    with pytest.raises(UnknownSchema, match="version 1"):
        driver.upgrade(Later)
    driver.upgrade(Third)
    assert sum(driver.table("amounts").values()) == 31


def test_a_table_moves_between_disk_and_memory_by_a_restart() -> None:
    driver = new(InMemory)
    feed(driver, some(40))
    before = state_of(driver)
    driver.upgrade(Bank)
    assert state_of(driver) == before
    driver.upgrade(InMemory)
    assert state_of(driver) == before


def test_the_setting_puts_those_tables_on_disk_that_can_be_there() -> None:
    class Mixed(Handler[Move]):
        plain = Table(key=str, value=int)
        kept = Table(key=str, value=int, storage="memory")
        brief = Table(key=str, value=int, ttl=60)

        def on_record(self, record: Record[Move]) -> None:
            for table in (self.plain, self.kept, self.brief):
                table[record.value.account] = record.value.amount

    settings = Settings()
    driver = Driver(Mixed, settings=replace(settings, state=replace(settings.state, storage="disk")))
    feed(driver, some(40))
    kinds = {name: type(table).__name__ for name, table in lane(driver).engine().state.tables.items()}
    assert kinds["plain"] == "DiskTable"
    assert kinds["kept"] == "PartitionTable"
    assert kinds["brief"] == "ExpiringTable"
    assert kinds["statehold.expiry.brief"] == "DueDiskTable"
    before = {name: dict(driver.table(name)) for name in ("plain", "kept", "brief")}
    started_again(driver)
    assert from_files(driver)
    assert {name: dict(driver.table(name)) for name in before} == before


def test_declarations_that_cannot_be_on_disk() -> None:
    with pytest.raises(UsageError, match="bytes of their key"):
        Table(key=tuple[str, ...], value=int, storage="disk")
    settings = Settings()
    with pytest.raises(UsageError, match="delta_interval"):
        Driver(Bank, settings=replace(settings, snapshot=replace(settings.snapshot, delta_interval="off")))


def test_a_service_without_such_a_table_runs_none_of_it() -> None:
    driver = new(InMemory)
    feed(driver, some(10))
    assert tools(driver).disk is None
    assert driver.files.files == {}


def test_a_long_key_of_a_sorted_table_is_the_fault_of_its_record() -> None:
    driver = new()
    driver.feed(Move("a" * 600, 1))
    with pytest.raises(Exception, match="sorted table on disk"):
        driver.commit()


@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_an_empty_key_and_bounds_that_are_no_keys(storage: Any) -> None:
    class Odd(Handler[str]):
        counts = Table(key=str, value=int, storage=storage)
        pairs = Table(key=tuple[str, int], value=int, storage=storage, sorted=True)
        numbers = Table(key=int, value=int, storage=storage, sorted=True)
        out = Output("out", value=str)

        def on_record(self, record: Record[str]) -> None:
            self.counts[record.value] = self.counts.get(record.value, 0) + 1
            self.pairs[record.value, record.offset] = self.numbers[record.offset] = 1
            bounds: list[Any] = [("",), ("a",), ("a", float("inf")), ("b", 0.5)]
            found = [[key for key, _ in self.pairs.range(low, high)] for low in bounds for high in bounds]
            wide: list[Any] = [-(10**30), 0.5, float("inf")]
            numbers = [[key for key, _ in self.numbers.range(low, high)] for low in wide for high in wide]
            self.out.send(f"{found} {numbers}")

    driver = Driver(Odd)
    for value in ("a", "", "b", "a", ""):
        driver.feed(value)
        driver.commit()
    assert driver.table("counts") == {"a": 2, "": 2, "b": 1}
    last = driver.outputs("out")[-1]
    assert last.startswith("[[], [('', 1), ('', 4)], [('', 1), ('', 4), ('a', 0), ('a', 3)], [('', 1), ")
    assert last.endswith("[[], [0], [0, 1, 2, 3, 4], [], [], [1, 2, 3, 4], [], [], []]")
    driver.crash()
    driver.restore()
    assert driver.table("counts") == {"a": 2, "": 2, "b": 1}


def test_a_key_that_was_stored_in_memory_and_is_too_long_for_the_files_names_its_partition() -> None:
    class Sorted(Handler[Move]):
        seen = Table(key=str, value=int, sorted=True, storage="memory")

        def on_record(self, record: Record[Move]) -> None:
            self.seen[record.value.account] = record.value.amount

    class OnDisk(Sorted):
        seen = Table(key=str, value=int, sorted=True, storage="disk")

    driver = Driver(Sorted)
    driver.feed(Move("a" * 600, 1))
    with pytest.raises(UnstorableValue) as raised:
        driver.upgrade(OnDisk)
    assert str(raised.value).startswith("input[0]: restore: table 'seen', key 'aaa")
    assert "The state in Kafka is unchanged. Next: declare 'seen' with storage='memory'" in str(raised.value)
    driver.upgrade(Sorted)
    assert dict(driver.table("seen")) == {"a" * 600: 1}


def restored(driver: Driver) -> dict[str, Any]:
    return [fields for event, fields in driver.events if event == "restored"][-1]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Changes wait until a state has 1,000 rows; return how often files were proven."""
    proofs: list[int] = []
    monkeypatch.setattr(disk_state, "WriteBehind", lambda rows: WriteBehind(1_000, seconds=math.inf))
    monkeypatch.setattr(MemoryStore, "proven", lambda store: proofs.append(1))
    return proofs


def test_the_first_commit_after_any_start_is_written_and_proves_the_files(waiting: list[int]) -> None:
    """Otherwise three kills before a write would cost a restore from Kafka, whatever the processes have committed."""
    driver = new()
    for _ in range(3):
        waiting.clear()
        feed(driver, some(5))
        driver.commit()
        assert waiting == [1]
        feed(driver, some(5))
        driver.commit()
        assert waiting == [1]
        started_again(driver)
        assert (from_files(driver), restored(driver)["deltas"]) == (True, 1)  # so the start itself has written
