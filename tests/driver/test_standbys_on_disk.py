"""Standby replicas with tables on disk: they follow in files of their own, and a takeover starts from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.driver import test_due_rows_on_disk as due_rows
from tests.driver.test_tables_on_disk import Bank, InMemory, Move, feed, new, newest, some, state_of
from tests.support.files_on_disk import damage_a_row, index_of_files, local, lose_a_row
from tests.support.inside import lane, place, tools

from statehold.disk import disk_state
from statehold.disk import label as labels
from statehold.disk.disk_state import DiskState
from statehold.disk.lmdb_store import LmdbStore
from statehold.disk.tables import DiskTable
from statehold.testing.driver import Driver
from statehold.testing.memory.files import MemoryStores
from statehold.worker.replicas.standby import Standbys


def last(driver: Driver, event: str) -> dict[str, object]:
    return [fields for name, fields in driver.events if name == event][-1]


def taken_over(driver: Driver) -> bool:
    """Kill the owner; return whether the new one had the replica's state."""
    driver.crash()
    driver.restore()
    return bool(last(driver, "restored").get("from_standby"))


def restarted(driver: Driver) -> None:
    """Let the replicas' process end and start again: what it had in memory is lost."""
    del driver.standbys
    driver.stand_by()


def replica_label(driver: Driver) -> labels.StoreLabel:
    label = labels.decoded(driver.replica_files.files[0].label or b"")
    assert label is not None
    return label


@pytest.fixture
def driver() -> Driver:
    driver = new()
    driver.stand_by()
    feed(driver, some(100))
    driver.stand_by()
    return driver


def test_a_takeover_has_the_state_of_the_replica_and_what_came_after(driver: Driver) -> None:
    expected = new(InMemory)
    feed(expected, some(100))
    for each in (driver, expected):
        feed(each, some(60, 2))
        each.commit()
    assert taken_over(driver)
    assert state_of(driver) == state_of(expected)
    for each in (driver, expected):
        feed(each, some(60, 3))
    assert state_of(driver) == state_of(expected)
    assert driver.outputs("out") == expected.outputs("out")
    driver.commit()
    assert replica_label(driver).record.n == newest(driver), "the owner writes to the files that it took over"


def test_a_replica_keeps_little_in_memory_and_writes_what_it_has_compared(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule X1: the files hold the state of a commit record with a delta, at each write."""
    monkeypatch.setattr(disk_state, "_SPILL", 20)
    seen: list[tuple[int, int]] = []

    def look(moment: str) -> None:
        if moment == "after" and driver.replica_files.files[0].label is not None:
            seen.append((replica_label(driver).record.n, newest(driver)))

    driver.replica_files.on_write = look
    for number in range(4):
        feed(driver, some(100, number, accounts=50))
        driver.commit()
        driver.stand_by()
    (copy,) = driver.standbys.copies().values()
    assert isinstance(copy.state, DiskState)
    assert not copy.state.crowded
    assert len(seen) > 3
    assert all(written <= committed for written, committed in seen)
    label = replica_label(driver)
    assert label.digest == label.record.digest


def test_a_replica_starts_from_its_files(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_state, "_SPILL", 20)
    feed(driver, some(100, 4))
    driver.commit()
    driver.stand_by()
    feed(driver, some(30, 5))
    driver.commit()
    restarted(driver)
    assert last(driver, "standby_ready")["from_files"] is True
    before = state_of(driver)
    assert taken_over(driver)
    assert state_of(driver) == before


def totals(driver: Driver) -> dict[bytes, bytes]:
    return driver.replica_files.files[0].tables["totals"]


def lose_the_label(driver: Driver) -> None:
    driver.replica_files.files[0].label = None


@pytest.mark.parametrize(
    "damage",
    [lambda driver: lose_a_row(totals(driver)), lambda driver: damage_a_row(totals(driver)), lose_the_label],
    ids=["row_lost", "row_damaged", "label_lost"],
)
def test_a_replica_whose_files_differ_is_built_again(driver: Driver, damage: Callable[[Driver], None]) -> None:
    damage(driver)
    restarted(driver)
    assert last(driver, "standby_ready")["from_files"] is None
    before = state_of(driver)
    assert taken_over(driver)
    assert state_of(driver) == before


def test_a_lost_row_is_found_when_its_key_changes(driver: Driver) -> None:
    """The digest after the delta is not the owner's: the replica is dropped, and its files are not used."""
    rows = driver.replica_files.files[0].tables["balances"]
    for each in list(rows):
        del rows[each]
    feed(driver, some(100, 6))
    driver.commit()
    driver.stand_by()
    assert "digest" in str(last(driver, "standby_dropped")["cause"])
    before = state_of(driver)
    driver.stand_by()
    assert taken_over(driver)
    assert state_of(driver) == before


def test_a_full_disk_of_a_replica_does_not_concern_the_owner(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_state, "_SPILL", 5)
    driver.replica_files.full = True
    feed(driver, some(100, 7, accounts=60))
    driver.commit()
    driver.stand_by()
    assert "space" in str(last(driver, "standby_dropped")["cause"])
    feed(driver, some(10, 8))
    driver.replica_files.full = False
    driver.stand_by()
    before = state_of(driver)
    assert taken_over(driver)
    assert state_of(driver) == before


def test_a_copy_that_cannot_continue_leaves_its_files_to_the_new_owner(driver: Driver) -> None:
    """They are of another place in the log than the copy in memory says: the files alone decide."""
    (copy,) = driver.standbys.copies().values()
    copy.offset += 1_000_000
    before = state_of(driver)
    driver.crash()
    driver.restore()
    assert state_of(driver) == before
    assert last(driver, "restored").get("from_standby") is None


def test_replicas_take_no_share_of_the_memory_for_values(driver: Driver) -> None:
    disk = tools(driver).disk
    assert disk is not None
    assert isinstance(driver.standbys, Standbys)
    (copy,) = driver.standbys.copies().values()
    tables = [table for table in copy.state.tables.values() if isinstance(table, DiskTable)]
    budget = lane(driver).engine().state
    assert isinstance(budget, DiskState)
    assert len({id(table) for table in tables}) == 2
    assert disk.budget.share == 256_000_000 // 2
    assert taken_over(driver)
    feed(driver, [Move("a", 1)])
    assert driver.table("balances")


# Tables of all kinds


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spill", [15, 50_000])
def test_tables_of_all_kinds_are_taken_over_with_the_state_of_tables_in_memory(
    seed: int, spill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules X1, X5 and X6, also from a replica that was killed or is behind. Each takeover is on another machine."""
    monkeypatch.setattr(disk_state, "_SPILL", spill)
    rnd = random.Random(seed)
    disk, memory = due_rows.new(due_rows.Kinds, "disk"), due_rows.new(due_rows.Kinds, "memory")
    now, continued = due_rows.START, set[object]()
    for number in range(8):
        for _ in range(rnd.randrange(1, 4)):
            count, step, keys = rnd.randrange(5, 40), rnd.randrange(1000), 12 if number % 3 else 60
            later = now
            for driver in (disk, memory):
                later = due_rows.feed_some(driver, step, count, now, keys)
                if step % 3 == 0:
                    driver.advance(6.0)
                driver.commit()
            now = later
            disk.stand_by()
            if step % 4 == 0:
                restarted(disk)
                continued.add(last(disk, "standby_ready")["from_files"])
        for driver in (disk, memory):  # the replica does not have these
            due_rows.feed_some(driver, 1000 + number, seed % 2 * 15, now, 12)
            driver.commit()
        files = disk.replica_files
        assert taken_over(disk)
        memory.crash()
        memory.restore()
        disk.files, disk.replica_files = files, MemoryStores()
        del disk.standbys
        assert due_rows.state_of(disk) == due_rows.state_of(memory), number
        assert disk.commit_record().digest == memory.commit_record().digest
    for driver in (disk, memory):
        driver.feed(due_rows.Event("last", 1), timestamp=now)
        driver.commit()
        driver.take_full()  # it compares each index with its rows
    assert continued == {True}
    assert disk.outputs("out") == memory.outputs("out")
    assert index_of_files(disk) == due_rows.recomputed(disk)
    assert {str(each).split(" ", 1)[0] for each in disk.outputs("out")} >= {"sums", "hops", "visits", "late"}


# Real files


def slots(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*/*")}


def test_a_dropped_replica_frees_its_files(tmp_path: Path) -> None:
    driver = new()
    driver.replica_files = local(tmp_path)  # type: ignore[assignment]
    driver.stand_by()
    feed(driver, some(50))
    driver.stand_by()
    driver.standbys.give_way()
    driver.stand_by()
    assert driver.standbys.copies()
    assert last(driver, "standby_ready")["from_files"] is True
    driver.standbys.close()
    assert slots(tmp_path) == {"0"}
    local(tmp_path).open(place(driver), ["balances", "moves", "totals"]).close()
    assert slots(tmp_path) == {"0"}


def test_the_new_owner_uses_the_files_of_the_replica(tmp_path: Path) -> None:
    """One machine: the former owner hangs, and holds the first directory."""
    driver = new()
    driver.replica_files = driver.files = local(tmp_path)  # type: ignore[assignment]
    driver.upgrade(Bank)
    feed(driver, some(50))
    driver.stand_by()
    feed(driver, some(50, 2))
    before = state_of(driver)
    assert taken_over(driver)
    assert state_of(driver) == before
    feed(driver, some(50, 3))
    driver.commit()
    assert slots(tmp_path) == {"0", "1"}
    state = lane(driver).engine().state
    assert isinstance(state, DiskState)
    assert isinstance(state.store, LmdbStore)
    assert state.store.directory.name == "1"
