"""The full on the local disk: saves the download, and is never believed without proof."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.handlers import Accounts, Op, agrees, events, many

from statehold.config.settings import Settings
from statehold.testing import Driver

OPS = many(40)


def new(directory: Path) -> Driver:
    settings = Settings()
    snapshot = replace(settings.snapshot, local_dir=str(directory), chunk_bytes=4096, full_interval=86_400.0)
    return Driver(Accounts, settings=replace(settings, snapshot=snapshot))


def stopped(directory: Path) -> Driver:
    """A service that ended with a full, on the disk too."""
    driver = new(directory)
    for op in OPS:
        driver.feed(op)
    driver.stop()
    await_kept(driver)
    return driver


@contextmanager
def reads_of_snapshots(driver: Driver) -> Iterator[list[int]]:
    """How often the snapshot topic was read: the manifest is one, the chunks another."""
    reads = [0]

    def count(topic: str, partition: int) -> None:
        reads[0] += topic == driver.names.snapshot

    driver.broker.on_read = count
    yield reads
    driver.broker.on_read = None


def file_of(directory: Path) -> Path:
    (found,) = directory.iterdir()
    return found


def await_kept(driver: Driver, count: int = 1) -> None:
    """Until the thread that makes a file durable is done."""
    deadline = time.monotonic() + 60
    while len(events(driver, "local_full_kept")) < count:
        assert time.monotonic() < deadline, driver.events
        time.sleep(0.001)


def restored_from_kafka(driver: Driver, directory: Path) -> None:
    """Right, from Kafka, and with a good file afterwards."""
    with reads_of_snapshots(driver) as reads:
        driver.restore()
    last = events(driver, "restored")[-1]
    assert last["from_disk"] is None
    assert last["full"] is not None
    assert reads[0] >= 2
    assert agrees(driver, OPS)
    driver.crash()
    await_kept(driver, 2)
    driver.restore()
    assert events(driver, "restored")[-1]["from_disk"], "the file was replaced by the download"
    assert agrees(driver, OPS)


def test_a_restart_reads_the_manifest_from_kafka_and_the_chunks_from_the_disk(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    assert events(driver, "local_full_kept")
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    with reads_of_snapshots(driver) as reads:
        driver.restore()
    assert events(driver, "restored")[-1]["from_disk"]
    assert reads[0] == 1
    assert agrees(driver, OPS)


def test_the_deltas_after_it_come_from_kafka(tmp_path: Path) -> None:
    driver, more = stopped(tmp_path), many(70)
    driver.restore()
    for op in more[len(OPS) :]:
        driver.feed(op)
    driver.commit()
    driver.crash()
    driver.restore()
    last = events(driver, "restored")[-1]
    assert last["from_disk"]
    assert last["deltas"] > 0
    assert agrees(driver, more)


def test_a_full_snapshot_that_was_downloaded_is_kept_too(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    file_of(tmp_path).unlink()
    restored_from_kafka(driver, tmp_path)


def flip(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


@pytest.mark.parametrize(
    "damage",
    [*(flip(at / 20) for at in range(21)), cut(0.0), cut(0.5), cut(0.99), lambda path: path.write_bytes(b"x" * 4096)],
)
def test_a_damaged_file_is_thrown_away(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    driver = stopped(tmp_path)
    damage(file_of(tmp_path))
    restored_from_kafka(driver, tmp_path)
    assert events(driver, "local_full_discarded")
    assert not events(driver, "full_unusable"), "the one in Kafka is not to blame"


def test_an_older_full_snapshot_is_thrown_away(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    old = file_of(tmp_path).read_bytes()
    driver.restore()
    driver.feed(OPS[0])
    driver.stop()
    await_kept(driver, 2)
    assert file_of(tmp_path).read_bytes() != old
    file_of(tmp_path).write_bytes(old)
    driver.restore()
    assert events(driver, "restored")[-1]["from_disk"] is None
    assert "the commit record refers to" in events(driver, "local_full_discarded")[-1]["cause"]
    assert agrees(driver, [*OPS, OPS[0]])


def test_the_file_of_another_history_with_the_same_offsets_is_thrown_away(tmp_path: Path) -> None:
    """Another generation of the same service: the same reference, other keys."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    driver, other = stopped(tmp_path / "a"), new(tmp_path / "b")
    for op in OPS:
        other.feed(elsewhere(op))
    other.stop()
    await_kept(other)
    assert references(driver) == references(other), "the references do not show it"
    file_of(tmp_path / "b").replace(file_of(tmp_path / "a"))
    restored_from_kafka(driver, tmp_path / "a")
    assert "its manifest is not the one in Kafka" in events(driver, "local_full_discarded")[-1]["cause"]


def test_a_file_with_the_right_manifest_and_other_chunks_is_thrown_away(tmp_path: Path) -> None:
    """Only the checksums, which the manifest in Kafka names, are between this file and a wrong state."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    driver, other = stopped(tmp_path / "a"), new(tmp_path / "b")
    for op in OPS:
        other.feed(elsewhere(op))
    other.stop()
    await_kept(other)
    ours, theirs = file_of(tmp_path / "a"), file_of(tmp_path / "b")
    tail = ours.read_bytes()[chunks_end(ours) : -24]
    chunks = theirs.read_bytes()[: chunks_end(theirs)]
    ours.write_bytes(chunks + tail + len(chunks).to_bytes(8, "little") + ours.read_bytes()[-16:])
    restored_from_kafka(driver, tmp_path / "a")


@pytest.mark.parametrize("where", ["/proc/none", "file"])
def test_a_failing_disk_is_logged_and_does_no_harm(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("no directory")
    driver = new(tmp_path / where)
    for op in OPS:
        driver.feed(op)
    driver.stop()
    driver.restore()
    assert events(driver, "local_full_failed")
    assert agrees(driver, OPS)


def test_files_of_a_killed_writer_are_removed_later(tmp_path: Path) -> None:
    driver = stopped(tmp_path)
    path = file_of(tmp_path)
    leftover = path.with_name(f"{path.name}.{2**22 + 1}-0a0b0c0d.new")
    leftover.write_bytes(b"half")
    path.unlink()
    driver.restore()
    assert not leftover.exists()


def references(driver: Driver) -> list[tuple[int, int]]:
    return [(event["full"], event["first"]) for event in events(driver, "full_written")]


def chunks_end(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[-24:-16], "little")


def elsewhere(op: Op) -> Op:
    """The same operation on another account: the same sizes, another state."""
    return Op(op.account[:-1] + chr(ord(op.account[-1]) ^ 1), op.amount, op.close, op.size)
