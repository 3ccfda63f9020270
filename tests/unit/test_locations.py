"""A location in a record of Kafka is data: it leads to no file outside the configured stores, and deletes none."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from tests.support.snapshot_records import NAMES, PLACE, commit_record, manifest

from statehold.admin.backup.backup import copy_segments
from statehold.errors import UsageError
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import FileWriter
from statehold.snapshot.backup.reading import place_of
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.store.base import SegmentGone, StoreTrouble, UnsafeLocation, split_location
from statehold.snapshot.store.fetch import segments_of, stored_frames
from statehold.snapshot.store.files import FileStore
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryReader
from statehold.testing.memory.clock import ManualClock

UNSAFE = [
    "file:///x/../../..",
    "file:///srv/s.in/0/..",
    "file:///srv/../0/f",
    "file:///srv/s.in/./f",
    "file:///srv/s.in//f",
    "file:///srv/s.in/0/f\0",
    "file:///srv/s.in/0/f\n",
    "f",
    "a/b",
    "/",
]


def full(store: str, segments: int = 1) -> Manifest:
    return manifest(commit_record(3), low=-1, store=store, segments=segments)


@pytest.mark.parametrize("location", UNSAFE)
def test_a_location_that_could_lead_out_is_rejected(location: str) -> None:
    with pytest.raises(UnsafeLocation):
        split_location(location)
    with pytest.raises(SegmentGone):
        list(stored_frames(full(location), ("file:///srv",)))
    with pytest.raises(SegmentGone):
        list(segments_of(full(location), ("file:///srv",)))


def test_a_store_that_no_setting_names_is_not_read(tmp_path: Path) -> None:
    FileStore(str(tmp_path / "theirs")).put("s.in/0/f/000000", b"secret")
    manifest = full(f"file://{tmp_path}/theirs/s.in/0/f")
    for roots in ((), (f"file://{tmp_path}/ours",)):
        (tmp_path / "ours").mkdir(exist_ok=True)
        with pytest.raises(SegmentGone, match=r"snapshot\.full_store"):
            list(segments_of(manifest, roots))
        with pytest.raises(SegmentGone, match=r"snapshot\.full_store"):
            list(stored_frames(manifest, roots))
    assert [data for _, data in segments_of(manifest, (f"file://{tmp_path}/theirs",))] == [b"secret"]


def test_a_manifest_of_endless_segments_asks_for_none() -> None:
    with pytest.raises(UnsafeLocation, match="segments for 1 chunks"):
        list(stored_frames(full("file:///srv/s.in/0/f", 10**15), ("file:///srv",)))


@pytest.mark.parametrize("location", ["file:///x/../../..", "file:///x/s.in/0/.."])
def test_a_backup_deletes_nothing_for_a_manifest(tmp_path: Path, location: str) -> None:
    to = tmp_path / "backups" / "today"
    archive.prepare(to)
    (tmp_path / "precious").write_text("kept")
    (to / archive.FULL_SNAPSHOTS).mkdir()
    broker = MemoryBroker(ManualClock())
    broker.log(NAMES.snapshot, 0).append(records.pack(full(location)))
    assert copy_segments(MemoryReader(broker, lambda: False), to, PLACE, ("file:///nowhere",)) == []
    assert (tmp_path / "precious").read_text() == "kept"
    assert (to / "README.md").exists()


def test_segments_of_a_full_snapshot_that_is_half_gone_are_removed_again(tmp_path: Path) -> None:
    to = tmp_path / "backup"
    archive.prepare(to)
    store = FileStore(str(tmp_path / "fulls"))
    store.put("s.in/0/f/000000", b"one of two")
    broker = MemoryBroker(ManualClock())
    manifest = msgspec.structs.replace(full(f"file://{tmp_path}/fulls/s.in/0/f", 2), checksums=(1, 2))
    broker.log(NAMES.snapshot, 0).append(records.pack(manifest))
    reader = MemoryReader(broker, lambda: False)
    assert copy_segments(reader, to, PLACE, (f"file://{tmp_path}/fulls",)) == []
    assert [path.name for path in to.rglob("*") if path.is_file()] == ["README.md"]


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/\0"])
def test_a_store_rejects_keys_that_lead_out(tmp_path: Path, key: str) -> None:
    store = FileStore(str(tmp_path / "root"))
    (tmp_path / "x").write_bytes(b"outside")
    for call in (store.get, store.delete, lambda key: store.put(key, b""), lambda key: list(store.list(key))):
        with pytest.raises(StoreTrouble, match="is not below"):
            call(key)
    assert (tmp_path / "x").read_bytes() == b"outside"


def test_a_store_follows_no_link_out_of_its_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "s.in").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreTrouble, match="is not below"):
        FileStore(str(tmp_path / "root")).put("s.in/0/f/000000", b"data")


def modes(directory: Path) -> set[int]:
    found = [directory, *directory.rglob("*")]
    return {stat.S_IMODE(path.stat().st_mode) for path in found}


def test_only_its_maker_may_read_a_backup(tmp_path: Path) -> None:
    to = tmp_path / "some" / "backup"
    archive.prepare(to)
    file = FileWriter(to, "full", NAMES.snapshot, 0).done(0, 0)
    segment = archive.add_segment(to, NAMES.snapshot, 0, "s.in/0/f/000000", b"data")
    archive.write_manifest(to, manifest_of([file, segment]))
    assert modes(to) == {0o700, 0o600}
    assert archive.read_manifest(to).files == [file, segment]


@pytest.mark.parametrize("name", ["../increment-0.jsonl", "/etc/passwd", "fulls/../../x"])
def test_a_backup_that_names_a_file_outside_is_rejected(tmp_path: Path, name: str) -> None:
    file = archive.ArchiveFile(name, NAMES.changelog, 0, "increment", 0, 0, 0, 0, "")
    archive.write_manifest(tmp_path, manifest_of([file]))
    with pytest.raises(UsageError, match="which is outside the backup"):
        archive.read_manifest(tmp_path)


def test_the_place_of_a_backup_has_the_backup_s_store_alone(tmp_path: Path) -> None:
    assert place_of(tmp_path, manifest_of([]), 0).roots == (f"file://{tmp_path}/fulls",)


def manifest_of(files: list[archive.ArchiveFile]) -> archive.BackupManifest:
    return archive.BackupManifest(
        backup="b",
        service=NAMES.service,
        namespace=NAMES.namespace,
        input=NAMES.input,
        partitions=[],
        topic_ids={},
        files=files,
        statehold="1",
        made="2026-01-01T00:00:00+00:00",
    )


def test_a_backup_copies_shared_segments_once(tmp_path: Path) -> None:
    to, store = tmp_path / "backup", FileStore(str(tmp_path / "fulls"))
    archive.prepare(to)
    broker = MemoryBroker(ManualClock())
    for number in range(3):
        store.put(f"s.in/0/f/{number:06}", b"%d" % number)
        manifest = msgspec.structs.replace(full(f"file://{tmp_path}/fulls/s.in/0/f", number + 1), checksums=(1, 2, 3))
        broker.log(NAMES.snapshot, 0).append(records.pack(manifest))
    copied = copy_segments(MemoryReader(broker, lambda: False), to, PLACE, (f"file://{tmp_path}/fulls",))
    assert [file.name for file in copied] == [f"fulls/s.in/0/f/{number:06}" for number in range(3)]
    assert [(to / file.name).read_bytes() for file in copied] == [b"0", b"1", b"2"]
