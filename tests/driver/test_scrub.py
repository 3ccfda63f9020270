"""The scrub: files of a live partition are read again, and a partition whose files differ restores from Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.driver import test_due_rows_on_disk as due_rows
from tests.driver.test_tables_on_disk import InMemory, Move, feed, new, some
from tests.support.files_on_disk import PLACE, damage_a_row, dropped, from_files, index_of_files, local, lose_a_row
from tests.support.inside import lane, tools

from statehold import Handler, Table
from statehold.common.threads import ThreadEvent
from statehold.config.settings import Settings
from statehold.disk.disk_state import DiskState
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.rows import check_of
from statehold.disk.start import label_of
from statehold.disk.tables import DecodedBudget
from statehold.disk.usage import ScrubNote
from statehold.errors import LocalStoreFailed
from statehold.ops.cli.inspect.status import scrub_shown
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Workload
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.testing.driver import Driver
from statehold.testing.memory.clock import ManualClock
from statehold.worker.full_snapshots import scrub as scrubbing
from statehold.worker.full_snapshots.scrub import Scrub
from statehold.worker.status import LiveStatus


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def scrub(clock: ManualClock) -> Scrub:
    return Scrub(0.005, clock, clock)


@pytest.fixture
def driver(scrub: Scrub) -> Driver:
    driver = new()
    driver.scrub = scrub
    feed(driver, some(200))
    driver.commit()
    return driver


def read_all(scrub: Scrub) -> int:
    """Read pieces until no pass is due; return their number."""
    count = 0
    while scrub.turn():
        count += 1
    return count


def passes(driver: Driver) -> list[tuple[int, bool]]:
    found = [fields for event, fields in driver.events if event == "local_store_scrubbed"]
    return [(int(str(each["rows"])), bool(each["digest_compared"])) for each in found]


def test_whole_files_are_read_once_per_interval(driver: Driver, scrub: Scrub, clock: ManualClock) -> None:
    keys = driver.commit_record().keys
    assert read_all(scrub) > 1
    assert passes(driver) == [(keys, True)]
    assert read_all(scrub) == 0
    clock.advance(3600)
    read_all(scrub)
    assert passes(driver) == [(keys, True)] * 2


def test_commits_between_two_pieces_do_not_disturb_a_pass(
    driver: Driver, scrub: Scrub, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "_ROWS", 3)
    for number in range(5):
        clock.advance(3600)
        while scrub.turn():
            feed(driver, some(3, number))
            driver.commit()
    assert [compared for _, compared in passes(driver)] == [True] * 5


def balances(driver: Driver) -> dict[bytes, bytes]:
    return driver.files.files[0].tables["balances"]


def an_older_row(driver: Driver) -> None:
    """As a page that was not written: the row has a checksum that fits."""
    rows = balances(driver)
    first = rows.keys() & {b"\1a1", b"\1a2", b"\1a3"}
    before = {place: rows[place] for place in first}
    feed(driver, [Move(place[1:].decode(), amount) for place in first for amount in (1, 1)])
    driver.commit()
    rows = balances(driver)
    place = next(place for place in first if place in rows and rows[place] != before[place])
    rows[place] = before[place]


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda driver: lose_a_row(balances(driver)), "digest"),
        (lambda driver: damage_a_row(balances(driver)), "checksum"),
        (an_older_row, "digest"),
    ],
    ids=["lost", "damaged", "older"],
)
def test_a_partition_whose_files_differ_restores_from_kafka(
    driver: Driver, scrub: Scrub, damage: Callable[[Driver], None], cause: str
) -> None:
    """Rule X7: the handler has not read the row."""
    damage(driver)
    total = driver.table("totals")["all"]
    read_all(scrub)
    with pytest.raises(LocalStoreFailed, match=f"scrub.*{cause}"):
        driver.feed(Move("a1", 1))
    driver.restore()
    assert not from_files(driver)
    assert driver.table("totals")["all"] == total + 1
    read_all(scrub)
    assert passes(driver)[-1][1]
    assert dropped(driver) == []
    note = status_of(driver).scrub
    assert note is not None
    assert (note.outcome, cause in note.cause, note.differed <= note.time) == ("equal", True, True)


def status_of(driver: Driver) -> LiveStatus:
    return LiveStatus.of(lane(driver).live())


def test_the_status_has_the_last_pass(driver: Driver, scrub: Scrub, clock: ManualClock) -> None:
    assert status_of(driver).scrub is None
    clock.advance(100)
    read_all(scrub)
    note = status_of(driver).scrub
    assert note == ScrubNote(clock(), driver.commit_record().keys, "equal")
    status = {"partition": 0, "live": {"scrub": msgspec.to_builtins(note)}}
    assert "scrub of files: 1 equal; the oldest pass ended " in scrub_shown([status])
    assert scrub_shown([{"partition": 1, "live": None}, {"partition": 2, "live": {"scrub": None}}]) == ""


def damaged_entry(last: bytes) -> dict[bytes, bytes | None]:
    return {last: check_of(last)[:-1] + bytes([check_of(last)[-1] ^ 1])}


def lost_entry(last: bytes) -> dict[bytes, bytes | None]:
    return {last: None}


def further_entry(last: bytes) -> dict[bytes, bytes | None]:
    return {last + b"x": check_of(last + b"x")}


@pytest.mark.parametrize("rows", [3, 256])
@pytest.mark.parametrize("index", ["due seen", "due visits"])
@pytest.mark.parametrize(
    ("damage", "cause"), [(damaged_entry, "checksum"), (lost_entry, "keys"), (further_entry, "keys")]
)
def test_entries_of_an_index_are_read_and_counted(
    scrub: Scrub,
    clock: ManualClock,
    damage: Callable[[bytes], dict[bytes, bytes | None]],
    cause: str,
    index: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule X7, for tables whose rows are due; the pass counts rows, and no entries."""
    monkeypatch.setattr(scrubbing, "_ROWS", rows)
    driver = due_rows.new(due_rows.Kinds, "disk")
    driver.scrub = scrub
    now = due_rows.feed_some(driver, 5, 80, due_rows.START, keys=30)
    driver.commit()
    read_all(scrub)
    assert passes(driver) == [(driver.commit_record().keys, True)]
    clock.advance(3600)
    files = driver.files.files[0]
    files.write({index: damage(max(files.tables[index]))}, files.label)
    read_all(scrub)
    with pytest.raises(LocalStoreFailed, match=f"scrub.*{cause}"):
        due_rows.feed_some(driver, 6, 9, now)
    driver.restore()
    assert not from_files(driver)
    assert index_of_files(driver) == due_rows.recomputed(driver)


def test_a_partition_that_leaves_is_read_no_more(driver: Driver, scrub: Scrub) -> None:
    assert scrub.turn()
    lane(driver).live().close()
    assert read_all(scrub) == 0
    assert passes(driver) == []


def test_files_that_were_closed_in_the_middle_of_a_pass(driver: Driver, scrub: Scrub) -> None:
    assert scrub.turn()
    state = lane(driver).engine().state
    assert isinstance(state, DiskState)
    state.store.close()
    read_all(scrub)
    assert passes(driver) == []


class Plain(Handler[bytes]):
    texts = Table(key=str, value=str, storage="disk")


@pytest.fixture
def large(tmp_path: Path) -> Iterator[DiskState]:
    stores = local(tmp_path, limit=1 << 30)
    tables = DiskTables(Plain, frozenset({"texts"}), stores, DecodedBudget(1_000_000), traced=False, track_delta=True)
    store = tables.open(PLACE)
    yield tables.empty_state(store)
    store.close()


def fail(error: BaseException) -> None:
    raise error


def write(state: DiskState, number: int, record: CommitRecord) -> None:
    """Replace all rows, with the label of a commit record that has their digest."""
    keys = [f"k{each}" for each in range(2000)]
    values: list[bytes | None] = [state.tables["texts"].encode(f"{number}" * 300) for _ in keys]
    state.load(Changes("texts", keys, values))
    state.loaded()
    of_rows = msgspec.structs.replace(record, digest=digest.to_bytes(state.digest))
    state.flush(label_of(PLACE, state, of_rows, (0, 0), work=Workload(), full_time=0.0))


def test_a_pass_does_not_make_the_files_grow_without_bound(
    large: DiskState, scrub: Scrub, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot keeps replaced pages, so a pass over files that change much takes several, and compares no digest."""
    monkeypatch.setattr(scrubbing, "_GROWTH", 2_000_000)
    record = driver.commit_record()
    lane(driver).live().close()
    write(large, 0, record)
    write(large, 1, record)
    about, size = tools(driver), large.stored_bytes()
    scrub.join(large, fail, about.metrics, about.log)
    for number in range(40):
        if not scrub.turn():
            break
        write(large, number, record)
    assert passes(driver) == [(2000, False)]
    assert large.stored_bytes() < size + 8_000_000


class Resting:
    """The end of the scrub after some rests, whose lengths it notes."""

    def __init__(self, rests: int) -> None:
        self.rests: list[float] = []
        self._left = rests

    def wait(self, timeout: float | None = None) -> bool:
        self.rests.append(timeout or 0.0)
        return len(self.rests) > self._left

    def set(self) -> None:
        """Nothing waits."""

    def clear(self) -> None:
        """It is never set."""

    def is_set(self) -> bool:
        return False


class Threads:
    """Each look at the processor time says that 2 ms were used."""

    def __init__(self) -> None:
        self.ending = Resting(60)
        self._used = 0.0

    def event(self) -> ThreadEvent:
        return self.ending

    def processor_time(self) -> float:
        self._used += 0.002
        return self._used


def test_the_thread_rests_by_its_share(driver: Driver, clock: ManualClock) -> None:
    threads = Threads()
    busy = Scrub(0.005, clock, clock, threads)  # type: ignore[arg-type]
    state, about = lane(driver).engine().state, tools(driver)
    assert isinstance(state, DiskState)
    busy.join(state, fail, about.metrics, about.log)
    busy.run()
    assert threads.ending.rests[1:3] == [pytest.approx(0.398)] * 2
    assert threads.ending.rests[-1] == 1.0


def test_it_is_off_without_tables_on_disk_or_by_the_setting() -> None:
    driver = new(InMemory)
    feed(driver, some(5))
    assert tools(driver).scrub is None
    assert Settings().state.scrub == 5
