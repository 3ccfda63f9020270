"""Full snapshots of tables on disk whose files grow meanwhile: several snapshots of the files are one full snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.files_on_disk import local
from tests.support.snapshot_records import PLACE
from tests.unit.test_full_snapshot import Owner, changes, finish

from statehold import Handler, Table
from statehold.disk import disk_state
from statehold.disk.disk_state import DiskState
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.port import PartitionStore, Stores
from statehold.disk.tables import DecodedBudget
from statehold.snapshot import full
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.full import FullWriter
from statehold.testing.memory.files import MemoryStores


class Rows(Handler[bytes]):
    t = Table(key=int, value=bytes)


class OwnerOfFiles(Owner):
    """Its state is in files, which have each commit."""

    def __init__(self, stores: Stores, keys: int = 12) -> None:
        tables = DiskTables(Rows, frozenset({"t"}), stores, DecodedBudget(1_000_000), traced=False, track_delta=True)
        self.store: PartitionStore = tables.open(PLACE)
        self.made = tables.empty_state(self.store)
        super().__init__(keys)

    def new_state(self) -> DiskState:
        return self.made

    def commit(self, writes: dict[int, bytes | None]) -> None:
        super().commit(writes)
        self.made.flush(b"%d" % self.n)


@pytest.fixture(params=[1, 3])
def renewing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is of a new snapshot, and has one row or three."""
    monkeypatch.setattr(disk_state, "most_rows", lambda store: -1)
    monkeypatch.setattr(full, "CHUNK_KEYS", request.param)


def manifest(owner: Owner) -> Manifest:
    found = records.unpack([*owner.log.committed()][-1].value())
    assert isinstance(found, Manifest)
    return found


def followed(owner: OwnerOfFiles, writer: FullWriter, steps: list[dict[int, bytes | None]]) -> None:
    """Commit the steps between the chunks; a restore must have the state of the last one."""
    ref = None
    for writes in steps:
        owner.commit(writes)
        if ref is None:
            ref = writer.advance(owner.n, 1.5, owner.tick)
    ref = ref or finish(owner, writer)
    restored = owner.restored(ref)
    assert restored.digest == owner.state.digest
    assert restored.tables["t"].stored == dict(owner.made.tables["t"].stored.items())


@pytest.mark.usefixtures("renewing")
@settings(max_examples=25)
@given(st.lists(changes, max_size=20))
def test_whatever_is_written_between_two_snapshots_the_restore_is_exact(
    steps: list[dict[int, bytes | None]],
) -> None:
    """Rules S1, S2: keys that are deleted before they are read, born behind and before that place, reborn."""
    owner = OwnerOfFiles(MemoryStores())
    followed(owner, owner.writer(), steps)


@settings(max_examples=25)
@given(st.lists(changes, max_size=20))
def test_one_snapshot_is_the_state_of_its_begin(steps: list[dict[int, bytes | None]]) -> None:
    owner = OwnerOfFiles(MemoryStores())
    begin = owner.commit_records[-1]
    followed(owner, owner.writer(), steps)
    assert manifest(owner).digest == begin.digest


@pytest.mark.usefixtures("renewing")
def test_a_full_snapshot_of_several_snapshots_is_that_of_no_boundary() -> None:
    owner = OwnerOfFiles(MemoryStores())
    writer = owner.writer()
    while (ref := writer.advance(owner.n, 1.5, owner.tick)) is None:
        owner.commit({3: b"%d" % owner.n})
    assert ref.first == 1 < ref.through <= owner.n
    assert manifest(owner).digest == b""


def test_the_files_do_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_state, "_GROWTH", 2_000_000)
    monkeypatch.setattr(full, "CHUNK_KEYS", 10)
    owner = OwnerOfFiles(local(tmp_path, limit=1 << 30), keys=1000)
    owner.commit({key: bytes(600) for key in range(1000)})
    owner.commit({key: bytes(600) for key in range(1000)})
    size, writer, begin = owner.store.size(), owner.writer(chunk_bytes=3_000), owner.n
    while (ref := writer.advance(owner.n, 1.5, owner.tick)) is None:
        owner.commit({key: bytes([owner.n % 256]) * 600 for key in range(1000)})
    assert ref.through > begin + 50
    assert owner.store.size() < size + 20_000_000
    assert owner.restored(ref).digest == owner.state.digest
    owner.store.close()
