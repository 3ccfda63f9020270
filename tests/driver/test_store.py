"""Full snapshots in a directory or in S3: only the manifest is in Kafka; a fault of the store never becomes a state."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, events, many
from tests.support.s3 import S3, serving

from statehold.config.common.errors import SettingsError
from statehold.config.settings import Settings
from statehold.errors import RestoreTimeout
from statehold.snapshot import store_orphans
from statehold.snapshot.format import frame
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.store.base import Store, StoreTrouble
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store.files import FileStore
from statehold.snapshot.store.sink import StoreSink
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader

OPS = many(40)
STORES = ["file", pytest.param("s3", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serving() as server:
        yield server


@pytest.fixture(params=STORES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/fulls"
    server: S3 = request.getfixturevalue("s3")
    return server.bucket()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two chunks or so, so that a small state has some."""
    monkeypatch.setattr(StoreSink.__init__, "__defaults__", (300, lambda: False, 60.0))


def new(root: str, **snapshot: object) -> Driver:
    settings = Settings()
    given = {"full_store": root, "chunk_bytes": 4096, "full_interval": 86_400.0} | snapshot
    return Driver(Accounts, settings=replace(settings, snapshot=replace(settings.snapshot, **given)))  # type: ignore[arg-type]


def stopped(root: str, **snapshot: object) -> Driver:
    driver = new(root, **snapshot)
    for op in OPS:
        driver.feed(op)
    driver.stop()
    return driver


def again(driver: Driver, op: Op = OPS[0]) -> None:
    """Another full."""
    driver.restore()
    driver.feed(op)
    driver.stop()


def keys(root: str) -> list[str]:
    return sorted(stored.key for stored in open_store(root).list("accounts.input/0"))


def kinds(driver: Driver) -> set[bytes]:
    log = driver.broker.log(driver.names.snapshot, 0)
    return {frame.kind_of(each.value()) for batch in log.read(log.start, log.end, 1000) for each in batch}


def reader(driver: Driver) -> MemoryReader:
    return MemoryReader(driver.broker, lambda: False)


def test_the_chunks_are_in_the_store_and_the_manifest_is_in_kafka(root: str) -> None:
    driver = stopped(root)
    assert kinds(driver) == {b"F"}
    assert len(keys(root)) >= 4
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is not None
    assert agrees(driver, OPS)
    again_op = many(50)[-1]
    driver.feed(again_op)
    driver.crash()
    driver.restore()
    assert agrees(driver, [*OPS, again_op])


def without(key: str, store: Store) -> None:
    store.delete(key)


def flipped(key: str, store: Store) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def cut(key: str, store: Store) -> None:
    store.put(key, store.get(key)[:-7])


def emptied(key: str, store: Store) -> None:
    store.put(key, b"")


@pytest.mark.parametrize("damage", [without, flipped, cut, emptied])
@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_segment_makes_an_older_full_snapshot_the_base(
    root: str, damage: Callable[[str, Store], None], which: int
) -> None:
    driver = stopped(root)
    first = set(keys(root))
    again(driver)
    damage(sorted(set(keys(root)) - first)[which], open_store(root))
    driver.restore()
    assert len(events(driver, "full_unusable")) == 1
    assert events(driver, "restored")[-1]["full"] == 0, "the older one"
    assert agrees(driver, [*OPS, OPS[0]])


def test_segments_of_another_full_snapshot_are_not_taken_for_this_one(root: str) -> None:
    driver = stopped(root)
    first = keys(root)
    again(driver)
    second = sorted(set(keys(root)) - set(first))
    store = open_store(root)
    for ours, theirs in zip(second, first, strict=False):
        store.put(ours, store.get(theirs))
    driver.restore()
    assert events(driver, "full_unusable")
    assert agrees(driver, [*OPS, OPS[0]])


def test_old_segments_without_a_manifest_are_removed(root: str) -> None:
    driver = stopped(root)
    kept, store = keys(root), open_store(root)
    store.put("accounts.input/0/abandoned/000000", b"half a full")
    store.put("accounts.input/1/abandoned/000000", b"another partition's")
    now = time.time()
    place = inside.place(driver)
    assert store_orphans.collect(store, reader(driver), place, now) == []
    assert "accounts.input/0/abandoned/000000" in keys(root), "it may still get its manifest"
    assert store_orphans.collect(store, reader(driver), place, now + 7200) == ["abandoned"]
    assert keys(root) == kept
    assert store.get("accounts.input/1/abandoned/000000")
    driver.restore()
    assert agrees(driver, OPS)


def test_nothing_is_removed_while_a_manifest_cannot_be_read(root: str) -> None:
    driver = stopped(root)
    before = keys(root)
    driver.broker.log(driver.names.snapshot, 0).append(b"\x01F\x00\x00" + b"damaged" * 4)
    with pytest.raises(BadFrame):
        store_orphans.collect(open_store(root), reader(driver), inside.place(driver), time.time() + 7200)
    assert keys(root) == before


def test_truncated_full_snapshots_leave_the_store(tmp_path: Path) -> None:
    root = f"file://{tmp_path}"
    driver = stopped(root, keep=1)
    for path in tmp_path.rglob("*"):
        os.utime(path, (10**9, 10**9))
    first = set(keys(root))
    driver.restore()
    for op in many(3):
        driver.feed(op)
        deadline = time.monotonic() + 60
        while driver.take_full() is None:  # the thread that writes to the store has a time of its own
            assert time.monotonic() < deadline
    driver.crash()
    assert first & set(keys(root)) == set()
    assert events(driver, "orphans_removed")
    driver.restore()
    assert agrees(driver, [*OPS, *many(3)])


def test_a_store_that_is_away_fails_the_restore_until_it_is_back(tmp_path: Path) -> None:
    driver = stopped(f"file://{tmp_path}/fulls")
    (tmp_path / "fulls").rename(tmp_path / "away")
    with pytest.raises(RestoreTimeout, match="is it mounted"):
        driver.restore()
    (tmp_path / "away").rename(tmp_path / "fulls")
    driver.restore()
    assert agrees(driver, OPS)


def test_a_store_that_was_moved_is_found_by_the_setting(tmp_path: Path) -> None:
    driver = stopped(f"file://{tmp_path}/old")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "old").mkdir()
    driver.settings = new(f"file://{tmp_path}/new").settings
    driver.restore()
    assert not events(driver, "full_unusable")
    assert agrees(driver, OPS)


def test_a_changed_setting_finds_older_full_snapshots_where_they_are(tmp_path: Path) -> None:
    driver, ops = stopped("kafka"), list(OPS)
    for number, root in enumerate((f"file://{tmp_path}/a", f"file://{tmp_path}/b", "kafka")):
        driver.settings = new(root, former_stores=f"file://{tmp_path}/b file://{tmp_path}/a").settings
        again(driver, OPS[number])
        ops.append(OPS[number])
    driver.restore()
    assert not events(driver, "full_unusable")
    assert agrees(driver, ops)


def test_a_store_that_cannot_be_written_costs_the_full_snapshot_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    driver = stopped(f"file://{tmp_path}/file")
    assert events(driver, "full_abandoned")
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS)


def test_a_file_that_does_not_fit_is_not_there_at_all(tmp_path: Path) -> None:
    store, limits = FileStore(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    store.put("a/b/000000", b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(StoreTrouble, match="File too large"):
            store.put("a/b/000000", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get("a/b/000000") == b"old"
    assert [stored.key for stored in store.list("a")] == ["a/b/000000"]


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_trouble_and_no_missing_segment(s3: S3) -> None:
    store = open_store("s3://nobody-made-this/prefix")
    with pytest.raises(StoreTrouble):
        store.get("a/b/000000")
    with pytest.raises(StoreTrouble):
        store.put("a/b/000000", b"x")


@pytest.mark.parametrize(
    "root", ["files", "file://relative", "file:///", "s3://", "gs://bucket", "file:///srv/", "s3://b/"]
)
def test_a_setting_that_is_no_store_is_rejected_at_once(root: str) -> None:
    with pytest.raises(SettingsError, match="full_store"):
        new(root)
