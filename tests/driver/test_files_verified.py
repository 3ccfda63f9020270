"""`snapshot verify --local`: the files of a stopped service are read row by row, and compared with Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
from tests.driver.test_tables_on_disk import Bank, Move, feed, newest, other_generation, other_session, some
from tests.support.files_on_disk import local
from tests.support.inside import lane, place

from statehold import Dedupe, Handler, Record, Table
from statehold.admin.inspection.local_files import FilesVerification, LocalTables, tables_and_root, verify_files
from statehold.config.settings import Settings
from statehold.disk import label as labels
from statehold.disk.usage import boot_id
from statehold.errors import UsageError
from statehold.testing.driver import Driver
from statehold.testing.memory.clients import StableMemoryReader

LIMIT = 1 << 26
#: each test ends the processes that it leaves, and multiprocessing's own is one of them
pytestmark = pytest.mark.filterwarnings("ignore:resource_tracker")


def on_files(directory: Path, kind: type[Handler[Any]] = Bank) -> Driver:
    """Return a driver whose tables are in real files."""
    driver = Driver(kind)
    driver.files = local(directory, limit=LIMIT, boot=boot_id())  # type: ignore[assignment]
    driver.upgrade(kind)
    return driver


def verified(driver: Driver, directory: Path, kind: type[Handler[Any]] = Bank) -> list[FilesVerification]:
    reader, tables = StableMemoryReader(driver.broker, lambda: False), LocalTables.of(kind, driver.settings)
    return list(verify_files(reader, [place(driver)], tables, directory, LIMIT))


def only(found: list[FilesVerification]) -> FilesVerification:
    (one,) = found
    return one


def stopped(directory: Path) -> Driver:
    driver = on_files(directory)
    feed(driver, some(120))
    state = lane(driver).engine().state
    driver.stop()
    state.close(flush=True)  # as the end of the worker's thread does
    return driver


def data_of(directory: Path) -> Path:
    (data,) = directory.glob("*/0/data.mdb")
    return data


def edited(directory: Path, change: Callable[[Any, Any, Any], None]) -> None:
    """Change the files with another program: a function of the transaction, the balances and the label's table."""
    with lmdb.open(str(data_of(directory).parent), max_dbs=8, map_size=LIMIT) as files:
        balances, meta = files.open_db(b"t.balances"), files.open_db(b"statehold")
        with files.begin(write=True) as writer:
            change(writer, balances, meta)


def test_whole_files_are_good_and_unchanged(tmp_path: Path) -> None:
    driver = on_files(tmp_path)
    feed(driver, some(120))
    record, state = driver.commit_record(), lane(driver).engine().state
    driver.stop()
    state.close(flush=True)
    before = {path: path.read_bytes() for path in data_of(tmp_path).parent.iterdir()}

    found = only(verified(driver, tmp_path))

    assert (found.good, found.findings, found.partition) == (True, [], 0)
    assert (found.n, found.rows) == (newest(driver), record.keys)
    assert int(found.digest, 16) == int.from_bytes(record.digest, "little")
    assert {path: path.read_bytes() for path in data_of(tmp_path).parent.iterdir()} == before
    driver.restore()
    assert driver.table("totals")


def lost_row(writer: Any, balances: Any, meta: Any) -> None:
    key, row = next(iter(writer.cursor(balances)))
    label = labels.decoded(writer.get(b"label", db=meta))
    assert label is not None
    counts = {**label.counts, "balances": label.counts["balances"] - 1}
    writer.put(b"label", labels.encode(msgspec.structs.replace(label, counts=counts)), db=meta)
    writer.delete(key, row, db=balances)


def uncounted_row(writer: Any, balances: Any, meta: Any) -> None:
    writer.delete(next(iter(writer.cursor(balances)))[0], db=balances)


def flipped_bit(writer: Any, balances: Any, meta: Any) -> None:
    key, row = next(iter(writer.cursor(balances)))
    writer.put(key, row[:-1] + bytes([row[-1] ^ 1]), db=balances)


@pytest.mark.parametrize(
    ("change", "cause"), [(lost_row, "digest"), (uncounted_row, "were written with"), (flipped_bit, "checksum")]
)
def test_rows_that_differ_are_a_fault(tmp_path: Path, change: Callable[..., None], cause: str) -> None:
    driver = stopped(tmp_path)
    edited(tmp_path, change)
    found = only(verified(driver, tmp_path))
    assert not found.good
    assert cause in found.findings[0].text


def test_damaged_pages_that_end_a_process_are_a_fault(tmp_path: Path) -> None:
    """LMDB ends the process at a page of zeros; the command does not end with it."""
    driver = stopped(tmp_path)
    data = data_of(tmp_path)
    whole = data.read_bytes()
    data.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    found = only(verified(driver, tmp_path))
    assert not found.good
    assert found.findings[0].fault


def test_a_cut_file_is_a_fault(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    data = data_of(tmp_path)
    data.write_bytes(data.read_bytes()[:9000])
    assert "pages" in only(verified(driver, tmp_path)).findings[0].text


def test_files_in_use_are_not_verified(tmp_path: Path) -> None:
    driver = on_files(tmp_path)
    feed(driver, some(60))
    found = only(verified(driver, tmp_path))
    assert not found.good
    assert "stop the service" in found.findings[0].text
    feed(driver, some(60))


@pytest.mark.parametrize(("change", "cause"), [(other_session, "not in Kafka"), (other_generation, "generation")])
def test_whole_files_that_a_start_would_not_use_are_no_fault(
    tmp_path: Path, change: Callable[..., Any], cause: str
) -> None:
    driver = stopped(tmp_path)

    def relabel(writer: Any, balances: Any, meta: Any) -> None:
        label = labels.decoded(writer.get(b"label", db=meta))
        writer.put(b"label", labels.encode(change(label)), db=meta)

    edited(tmp_path, relabel)
    found = only(verified(driver, tmp_path))
    assert found.good
    assert cause in found.findings[0].text


def test_files_of_other_tables_or_an_unclean_end_are_no_fault(tmp_path: Path) -> None:
    class Wider(Bank):
        more = Table(key=str, value=int, storage="disk")

    driver = stopped(tmp_path)
    found = only(verified(driver, tmp_path, Wider))
    assert found.good
    assert "other tables" in found.findings[0].text
    usage = data_of(tmp_path).parent / "usage"
    usage.write_text('{"boot": "another"}', encoding="ascii")
    found = only(verified(driver, tmp_path))
    assert found.good
    assert "the machine has stopped" in found.findings[0].text


def test_directories_without_files_have_no_result(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    assert verified(driver, tmp_path / "elsewhere") == []


def test_a_service_without_tables_on_disk_or_without_a_directory() -> None:
    class Plain(Handler[Move]):
        totals = Table(key=str, value=int)

        def on_record(self, record: Record[Move]) -> None:
            self.totals["all"] = 1

    settings = Settings()
    with pytest.raises(UsageError, match="no tables on disk"):
        tables_and_root(Plain, settings)
    with pytest.raises(UsageError, match=r"state\.dir"):
        tables_and_root(Bank, replace(settings, service=replace(settings.service, state_dir="off")))
    tables, root = tables_and_root(Bank, replace(settings, state=replace(settings.state, dir="/files")))
    assert root == Path("/files")
    assert tables.on_disk == {"balances", "moves"}


class Once(Handler[Move]):
    seen = Dedupe(key=str, ttl=1000, storage="disk")

    def on_record(self, record: Record[Move]) -> None:
        self.seen.seen(f"{record.value.account} {record.value.amount}")


def test_the_entries_of_an_index_are_counted_and_checked(tmp_path: Path) -> None:
    driver = on_files(tmp_path, Once)
    feed(driver, some(120))
    state, seen = lane(driver).engine().state, driver.table("seen")
    driver.stop()
    state.close(flush=True)
    good = only(verified(driver, tmp_path, Once))
    assert good.findings == []
    assert good.rows == len(seen) + 1, "and the clock"
    for change, text in ((damage_entry, "checksum"), (delete_entry, "due seen")):
        with lmdb.open(str(data_of(tmp_path).parent), max_dbs=8, map_size=LIMIT) as files:
            index = files.open_db(b"t.due seen", create=False)
            with files.begin(write=True) as writer:
                change(writer, index)
        (finding,) = only(verified(driver, tmp_path, Once)).findings
        assert finding.fault
        assert text in finding.text


def damage_entry(writer: Any, index: Any) -> None:
    place, _ = next(iter(writer.cursor(index)))
    writer.put(place, bytes(8), db=index)


def delete_entry(writer: Any, index: Any) -> None:
    place, _ = next(iter(writer.cursor(index)))
    writer.delete(place, db=index)
