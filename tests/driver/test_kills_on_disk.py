"""Kills, torn files, a deleted directory and a wrong clock: never a wrong state that goes live."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.driver.test_tables_on_disk import Bank, InMemory, Killed, feed, new, some, state_of
from tests.support.files_on_disk import PLACE, TABLES, contents, from_files, local
from tests.support.processes import ROOT

from statehold import Handler, Table
from statehold.disk.disk_state import DiskState
from statehold.disk.port import PartitionStore
from statehold.disk.start import label_of
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Workload
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.testing.driver import Driver
from statehold.testing.memory.files import MemoryStore, MemoryStores, PartitionFiles

CALLS = ("label", "get", "count", "snapshot", "apply", "clear", "size", "proven", "close")


class Killing(MemoryStores):
    """Each store call is a point at which the process may be killed: right before it, or right after it."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[str, int] = {}
        self.moment = "before"

    def open(self, place: Place, tables: Sequence[str]) -> MemoryStore:
        self.reach("open", "before")
        store = KillingStore(self, self.files.setdefault(place.partition, PartitionFiles()), place)
        self.reach("open", "after")
        return store

    def reach(self, call: str, moment: str) -> None:
        if moment != self.moment or call not in self.left:
            return
        self.left[call] -= 1
        if self.left[call] == 0:
            raise Killed(call)


def _point(name: str) -> Callable[..., Any]:
    call = getattr(MemoryStore, name)

    def reached(self: KillingStore, *arguments: Any, **options: Any) -> Any:
        self.killing.reach(name, "before")
        found = call(self, *arguments, **options)
        self.killing.reach(name, "after")
        return found

    return reached


class KillingStore(MemoryStore):
    """A store whose calls are points."""

    def __init__(self, stores: Killing, files: PartitionFiles, place: Place) -> None:
        super().__init__(stores, files, place)
        self.killing = stores


for each in CALLS:
    setattr(KillingStore, each, _point(each))


def service() -> tuple[Driver, Killing]:
    driver, stores = new(), Killing()
    driver.files = stores
    driver.upgrade(Bank)
    return driver, stores


def steps(driver: Driver) -> list[Callable[[], object]]:
    """Return a life of the service that reaches each store call: feeds, a full snapshot, a crash, a restore."""

    def feed_up_to(count: int) -> None:
        feed(driver, some(90)[driver.broker.log("input", 0).end : count])

    first, second, third = (partial(feed_up_to, count) for count in (30, 60, 90))
    return [first, second, driver.commit, driver.take_full, driver.crash, driver.restore, third, driver.commit]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["open", *CALLS])
def test_a_kill_at_each_store_call(call: str, moment: str) -> None:
    """Rule X1, X2: after the kill the state and the outputs are those of a service that was never killed."""
    expected = new(InMemory)
    feed(expected, some(90))
    expected.commit()
    killed = 0
    for number in (1, 4):
        driver, stores = service()
        stores.moment, stores.left = moment, {call: number}
        for step in steps(driver):
            try:
                step()
            except Killed:
                killed += 1
                stores.left = {}
                driver.crash()
                driver.restore()
        stores.left = {}
        for step in steps(driver)[-2:]:
            step()
        assert state_of(driver) == state_of(expected), (call, number)
        assert driver.outputs("out") == expected.outputs("out"), (call, number)
    assert killed or call in ("close", "size")


TORN = """
import os, random, sys
from pathlib import Path
import msgspec
from tests.driver.test_kills_on_disk import Texts, saved, raw
from tests.support.files_on_disk import PLACE, local
from statehold.admin.inspection.local_files import read_files
from statehold.disk import label as labels
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.lmdb_store import read_only
from statehold.disk.tables import DecodedBudget
from statehold.errors import LocalStoreFailed
from statehold.state import digest
root, rnd = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
on_disk = frozenset({"texts"})
tables = DiskTables(Texts, on_disk, local(root), DecodedBudget(10**6), traced=False, track_delta=True)
store = tables.open(PLACE)
state, held, images = tables.empty_state(store), {}, []
(data,) = root.glob("*/0/data.mdb")
for number in range(60):
    saved(state, number, rnd)
    held[number] = raw(store)
    if number % 10 == 0:
        images.append(data.read_bytes())
store.close()
whole = data.read_bytes()
for _ in range(40):
    torn = bytearray(whole)
    for _ in range(rnd.randrange(1, 4)):
        at = rnd.randrange(len(whole) // 4096) * 4096
        older = rnd.choice(images)[at:at + 4096]
        torn[at:at + 4096] = rnd.choice([bytes(4096), rnd.randbytes(4096), older + bytes(4096 - len(older))])
    data.write_bytes(torn)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        found = read_files(data.parent, {"texts": str}, on_disk, (), 1 << 26)
        label = None if found.fault or found.label is None else labels.decoded(found.label)
        good = label is not None and label.record.digest == digest.to_bytes(found.digest)
        if not good or label is None:
            os._exit(0)
        with read_only(data.parent, ["texts"], 1 << 26, lambda doing, cause: LocalStoreFailed(cause)) as rows:
            os._exit(3 if dict(rows.rows("texts")) == held[label.record.n] else 2)
    _, status = os.waitpid(child, 0)
    print("signal" if os.WIFSIGNALED(status) else {0: "fault", 2: "WRONG", 3: "good"}[os.WEXITSTATUS(status)])
"""


class Texts(Handler[bytes]):
    texts = Table(key=str, value=str, storage="disk")


def saved(state: DiskState, number: int, rnd: random.Random) -> None:
    """Write some rows, with the label of a commit record that has their digest."""
    keys = list(dict.fromkeys(f"k{rnd.randrange(2000)}" for _ in range(50)))
    state.follow(Changes("texts", keys, [state.tables["texts"].encode(f"{number}" * 40) for _ in keys]))
    record = CommitRecord(
        n=number,
        attempt="a",
        lineage="l",
        service="s",
        partition=3,
        partitions=8,
        positions={"input": number},
        digest=digest.to_bytes(state.digest),
    )
    state.flush(label_of(PLACE, state, record, (0, 0), work=Workload(), full_time=0.0))


def raw(store: PartitionStore) -> dict[bytes, bytes]:
    return contents(store, "texts")


def test_torn_files_are_called_good_only_with_all_their_rows(tmp_path: Path) -> None:
    """Rule X4: pages of zeros, of noise and of older writes, as a disk leaves them that lies about its writes."""
    done = subprocess.run(
        [sys.executable, "-c", TORN, str(tmp_path), "5"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = Counter(done.stdout.split())
    assert outcomes.total() == 40
    assert outcomes["WRONG"] == 0
    assert outcomes["fault"]
    assert outcomes["signal"]


def test_a_directory_that_is_deleted_while_the_service_is_live(tmp_path: Path) -> None:
    """The open files are whole without a name. The next start finds none, and makes new ones."""
    store = local(tmp_path).open(PLACE, TABLES)
    store.apply({"a": {b"1": b"x"}}, b"m")
    shutil.rmtree(tmp_path)
    store.proven()
    store.apply({"a": {b"2": b"y"}}, b"n")
    assert contents(store) == {b"1": b"x", b"2": b"y"}
    assert store.size() == 0
    other = local(tmp_path).open(PLACE, TABLES)
    assert other.label() is None
    store.close()
    other.apply({"a": {b"3": b"z"}}, b"o")
    other.close()
    again = local(tmp_path).open(PLACE, TABLES)
    assert (again.label(), contents(again)) == (b"o", {b"3": b"z"})
    again.close()


@pytest.mark.parametrize("jump", [-10 * 86400.0, 2 * 86400.0, -3e9])
def test_a_wrong_clock_changes_nothing(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, expected = new(), new(InMemory)
    feed(driver, some(60))
    feed(expected, some(60))
    driver.commit()
    wall = driver.clock.wall
    monkeypatch.setattr(driver.clock, "wall", lambda: max(0.0, wall() + jump))
    feed(driver, some(60, 2))
    feed(expected, some(60, 2))
    driver.crash()
    driver.restore()
    assert from_files(driver)
    monkeypatch.setattr(driver.clock, "wall", wall)
    driver.crash()
    driver.restore()
    assert from_files(driver)
    assert state_of(driver) == state_of(expected)
