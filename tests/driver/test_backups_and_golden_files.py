"""A driver's partition begins with a state of a backup, handles the backup's input again, and equals a golden file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support.handlers import Accounts, fold, many

from statehold import Handler, Output, Record, Table, on
from statehold.errors import UsageError
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import BackupManifest, FileWriter, Role, SavedPartition
from statehold.state import digest
from statehold.testing import Driver

OPS = many(24)


def save(driver: Driver, directory: Path, *, with_input: bool = True) -> Path:
    """Write what `statehold snapshot backup` writes, from a driver with one partition."""
    names, record = driver.names, driver.commit_record()
    archive.prepare(directory)
    files = []
    roles: list[tuple[Role, str, int]] = [("increment", names.changelog, 1), ("full", names.snapshot, 1)]
    if with_input:
        roles += [("input", topic, number) for number, topic in enumerate(names.inputs, 1)]
    for role, topic, number in roles:
        log = driver.broker.log(topic, 0)
        writer = FileWriter(directory, role, topic, 0, number)
        writer.add(log.committed())
        files.append(writer.done(log.start, log.end))
    saved = SavedPartition(0, record.n, 0, 0, 0, digest.show(record.digest), record.lineage)
    manifest = BackupManifest(
        format=archive.SEVERAL if names.others else archive.FORMAT,
        backup="b",
        service=names.service,
        namespace=names.namespace,
        input=names.input,
        others=list(names.others),
        partitions=[saved],
        topic_ids=dict(record.topic_ids),
        files=files,
        statehold="0",
        made="now",
    )
    archive.write_manifest(directory, manifest)
    return directory


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """A backup of a service that has committed each half of OPS."""
    driver = Driver(Accounts)
    for op in OPS[:12]:
        driver.feed(op, key="k")
    driver.commit()
    for op in OPS[12:]:
        driver.feed(op, key="k")
    driver.commit()
    return save(driver, tmp_path / "night")


def test_the_state_of_a_backup_continues(night: Path) -> None:
    driver = Driver(Accounts)
    assert driver.load(night) == 24
    assert driver.position() == 24
    first = driver.commit_record()
    assert (first.n, first.start, first.keys) == (0, 24, len(fold(OPS)[0]))
    more = many(30)[24:]
    for op in more:
        assert driver.feed(op, key="k") >= 24
    driver.crash()
    driver.restore()
    assert driver.table("balances") == fold([*OPS, *more])[0]
    assert driver.outputs("totals") == fold([*OPS, *more])[1][24:]
    driver.replay()


def test_the_night_is_handled_again_from_the_middle(night: Path) -> None:
    driver = Driver(Accounts)
    assert driver.load(night, at="12") == 12
    assert driver.feed_backup(night) == 12
    driver.commit()
    assert driver.table("balances") == fold(OPS)[0]
    assert driver.outputs("totals") == fold(OPS)[1][12:]
    assert driver.position() == 24
    assert driver.feed_backup(night) == 0
    driver.replay()


def test_up_to_a_time(night: Path) -> None:
    driver = Driver(Accounts)
    driver.load(night, at="12")
    assert driver.feed_backup(night, until=0) == 0


def test_a_changed_backup_is_not_loaded(night: Path) -> None:
    changed = night / "increment-0.jsonl"
    changed.write_bytes(changed.read_bytes()[:-20])
    with pytest.raises(UsageError, match="increment-0"):
        Driver(Accounts).load(night)


def test_what_a_driver_cannot_load_is_explained(night: Path, tmp_path: Path) -> None:
    driver = Driver(Accounts)
    with pytest.raises(UsageError, match="is beyond the end"):
        driver.load(night, at="25")
    with pytest.raises(UsageError, match="has 1 partitions, no partition 1"):
        Driver(Accounts, partitions=2).load(night, partition=1)
    with pytest.raises(UsageError, match="is not a complete backup"):
        driver.load(tmp_path)
    driver.feed(OPS[0])
    with pytest.raises(UsageError, match="has started"):
        driver.load(night)
    without = save(driver, tmp_path / "without", with_input=False)
    with pytest.raises(UsageError, match="--with-input"):
        driver.feed_backup(without)


class Pair(Handler[int]):
    """Each output depends on all records before it, of either input."""

    links = Table(key=str, value=int)
    out = Output("out", value=int)

    @on("left", value=int)
    def left(self, record: Record[int]) -> None:
        self._link(record.value * 2)

    @on("right", value=int)
    def right(self, record: Record[int]) -> None:
        self._link(record.value * 3 + 1)

    def _link(self, number: int) -> None:
        link = self.links["all"] = (self.links.get("all", 0) * 31 + number) % 1_000_003
        self.out.send(link)


def test_two_inputs_continue_in_the_order_of_their_times(tmp_path: Path) -> None:
    first = Driver(Pair)
    for number in range(6):
        first.feed(number, timestamp=1000 + number, input="left" if number % 3 else "right")
    first.commit()
    saved = save(first, tmp_path / "saved")
    second = Driver(Pair)
    assert second.load(saved, at="n:0") == 0
    assert second.feed_backup(saved) == 6
    assert second.outputs("out") == first.outputs("out")
    with pytest.raises(UsageError, match="has the inputs left, right, not input"):
        Driver(Accounts).load(saved)


def test_a_golden_file(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "accounts.txt"
    driver = Driver(Accounts)
    for op in OPS[:5]:
        driver.feed(op)
    with pytest.raises(AssertionError, match="did not exist"):
        driver.golden(path)
    driver.golden(path)
    rows = driver.table("balances")
    assert path.read_text().splitlines()[0] == "balances:"
    assert len(path.read_text().splitlines()) == 1 + len(rows)
    for key, value in rows.items():
        shown = msgspec.json.encode(value, order="sorted").decode()
        assert f'\n  "{key}": {shown}\n' in path.read_text()
    driver.feed(OPS[5])
    with pytest.raises(AssertionError, match=r"\n\+  .*\nNext: if the new state is right, delete"):
        driver.golden(path)


def test_fuzz_crashes_as_a_method() -> None:
    assert Driver(Pair).fuzz_crashes([1, 2], most=20) > 10
