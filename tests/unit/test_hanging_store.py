"""A store that takes a request and never answers holds up no leaving partition (a server of this machine plays it)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.hanging import Door, door
from tests.support.snapshot_records import LogSink

from statehold.ports import Cancelled
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Chunk, Manifest
from statehold.snapshot.store.base import StoreTrouble
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store.fetch import stored_frames
from statehold.snapshot.store.files import FileStore
from statehold.snapshot.store.sink import StoreSink
from statehold.state import digest
from statehold.testing.memory.log import MemoryLog

ROOT = "s3://bucket/prefix"
CHUNK = records.pack(Chunk("f", 0, -1, msgspec.Raw(msgspec.msgpack.encode(["table", [b"x" * 500], [b"y"]]))))


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    with door() as server:
        host, port = server.address
        environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


def manifest(segments: int) -> Manifest:
    return Manifest(
        full="f",
        service="service",
        partition=0,
        partitions=1,
        lineage="l",
        first=1,
        through=1,
        positions={"input": 1},
        digest=digest.to_bytes(0),
        increment=0,
        low=-1,
        store=f"{ROOT}/service.input/0/f",
        segments=segments,
        checksums=(1,) * segments,
    )


def still_asking() -> bool:
    return any(thread.name == "fetch" for thread in threading.enumerate())


def test_a_restore_ends_when_the_partition_leaves(shut: Door) -> None:
    """It leaves once the store has been asked, and the call itself is still under way when it has left."""
    with pytest.raises(Cancelled):
        list(stored_frames(manifest(5), (ROOT,), cancelled=shut.knocked.is_set))
    assert still_asking()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "fetch"), "it would keep the process"


def test_a_silent_store_is_abandoned_by_name(shut: Door) -> None:
    with pytest.raises(StoreTrouble, match=r"segment service\.input/0/f/000000 did not arrive within 0 s"):
        list(stored_frames(manifest(5), (ROOT,), patience=0.2))


def send_until_trouble(sink: StoreSink) -> None:
    """More than waits in memory, as a full of marks-only mode does: it cannot come back later."""
    sink.open("f")
    for _ in range(10):
        sink.send(CHUNK)


def test_a_full_snapshot_that_waits_for_room_is_abandoned_when_the_partition_leaves(shut: Door) -> None:
    kafka = LogSink(MemoryLog("full", 0))
    sink = StoreSink(open_store(ROOT), ROOT, "service.input/0", kafka, 1, shut.knocked.is_set)
    with pytest.raises(StoreTrouble, match="accepts nothing, and the partition leaves"):
        send_until_trouble(sink)
    sink.close()


def test_a_full_snapshot_that_waits_for_room_is_abandoned_after_a_while(shut: Door) -> None:
    kafka = LogSink(MemoryLog("full", 0))
    sink = StoreSink(open_store(ROOT), ROOT, "service.input/0", kafka, 1, patience=0.2)
    with pytest.raises(StoreTrouble, match="has accepted nothing for 0 s"):
        send_until_trouble(sink)
    sink.close()


class HeldStore(FileStore):
    """A directory that takes the next segment for each permit."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.permits, self.asked = threading.Semaphore(0), threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self.asked.set()
        self.permits.acquire(timeout=60)
        super().put(key, data)


def test_a_segment_that_finds_room_in_time_is_taken_though_the_partition_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statehold.snapshot.store.sink._GLANCE", 30.0)  # in time, however busy the machine is
    store = HeldStore(str(tmp_path))
    sink = StoreSink(store, "file:///fulls", "service.input/0", LogSink(MemoryLog("full", 0)), 1, lambda: True)
    sink.open("f")
    sink.send(CHUNK)
    assert store.asked.wait(10)
    while not sink.crowded:
        sink.send(CHUNK)
    release = threading.Timer(0.01, store.permits.release)
    release.start()
    sink.send(CHUNK)
    release.join()
    store.permits.release(10)
    assert sink.acknowledged(10.0) == [-1] * 4
    sink.close()
