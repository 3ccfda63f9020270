"""A state on disk: a restore, a scan and a full snapshot hold a part of it in memory, whatever its size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.files_on_disk import PLACE, local

from statehold import Handler, Table
from statehold.disk.disk_state import DiskState
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.tables import DecodedBudget, DiskTable
from statehold.health import process_memory
from statehold.state.partition_table import Changes
from statehold.state.state import State

MB = 1_000_000
KEYS, BYTES, BATCH = 60_000, 3_000, 1_000


class Store(Handler[bytes]):
    texts = Table(key=str, value=str, storage="disk")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[DiskState]:
    stores = local(tmp_path, limit=1 << 30)
    tables = DiskTables(Store, frozenset({"texts"}), stores, DecodedBudget(20 * MB), traced=False, track_delta=True)
    store = tables.open(PLACE)
    yield tables.empty_state(store)
    store.close()


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Require that memory, without the pages of files, has grown by less than `most`."""
    before = own()
    yield
    assert own() - before < most


def own() -> int:
    return process_memory.used() - process_memory.of_files()


def fill(state: State) -> None:
    for first in range(0, KEYS, BATCH):
        keys = [f"k{number:09d}" for number in range(first, first + BATCH)]
        values: list[bytes | None] = [state.tables["texts"].encode(key[-4:] * (BYTES // 4)) for key in keys]
        state.load(Changes("texts", keys, values))
    state.loaded()


def test_a_state_of_180_mb_in_a_part_of_that_memory(state: DiskState) -> None:
    table = state.tables["texts"]
    with bounded(90 * MB):
        fill(state)
        assert state.keys == KEYS
        assert state.stored_bytes() > KEYS * BYTES
        assert sum(len(value) for value in table.values()) == KEYS * BYTES
        assert sum(len(change.keys) for change in state.pieces(2048)) == KEYS
    assert isinstance(table, DiskTable)
    assert table.in_memory * BYTES <= 40 * MB


def txn(state: State, texts: dict[str, str]) -> None:
    table = state.tables["texts"]
    for key, text in texts.items():
        if key in table:
            table.get(key)
        table[key] = text
    frozen = state.freeze()
    state.commit(frozen, delta=True)
    assert isinstance(state, DiskState)
    state.flush(b"label")


def test_a_value_that_is_written_again_is_weighed_once(state: DiskState) -> None:
    """Otherwise writes of few keys drop the values of all others."""
    table = state.tables["texts"]
    assert isinstance(table, DiskTable)
    names = [f"k{number:06d}" for number in range(10_000)]
    txn(state, dict.fromkeys(names, "x" * 100))
    for number in range(100):
        txn(state, dict.fromkeys(names[:500], f"{number:0100d}"))
    table.reads = 0
    assert len([table.get(name) for name in names]) == len(names)
    assert table.reads == 0
    assert 10_000 * 300 < table.decoded_bytes < 20 * MB


def test_values_that_grow_are_weighed(state: DiskState) -> None:
    """So they drop the values that are not in use."""
    table = state.tables["texts"]
    assert isinstance(table, DiskTable)
    names = [f"k{number:06d}" for number in range(200)]
    txn(state, dict.fromkeys(names, "x"))
    for size in range(1, 20):
        txn(state, dict.fromkeys(names[:100], "x" * 10000 * size))
    table.reads = 0
    assert [table.get(name) for name in names[100:]] == ["x"] * 100
    assert table.reads > 0


def test_long_keys_are_weighed(state: DiskState) -> None:
    table = state.tables["texts"]
    assert isinstance(table, DiskTable)
    txn(state, {f"{number:01000d}": "x" for number in range(1_000)})
    assert table.decoded_bytes > 1_000 * 1_000
