"""Committed changes wait in memory: what is written when, and that files and label are always of one commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_on_disk import PLACE, contents, local

from statehold import Handler, Table
from statehold.disk.disk_state import DiskState, WriteBehind
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.disk.lmdb_store import LmdbStore
from statehold.disk.port import Batch, PartitionStore
from statehold.disk.tables import DecodedBudget, DiskTable
from statehold.errors import LocalStoreFailed
from statehold.state.state import State


class Store(Handler[bytes]):
    texts = Table(key=str, value=str, storage="disk")


class Files:
    """A state whose files are written after five rows, 1,000 bytes or 10 s."""

    def __init__(self, directory: Path, partitions: int = 1) -> None:
        self.behind = WriteBehind(5, 1_000, 10.0)
        budget, on_disk = DecodedBudget(1_000_000), frozenset({"texts"})
        self.tables = DiskTables(
            Store, on_disk, local(directory), budget, traced=False, track_delta=True, behind=self.behind
        )
        self.store: PartitionStore = self.tables.open(PLACE)
        self.state = self.tables.empty_state(self.store)
        self._others = [State([]) for _ in range(partitions - 1)]
        for other in self._others:
            self.behind.join(other)  # type: ignore[arg-type]
        self.number = 0
        self.transaction({"first": "a"})
        self.state.flush(b"1")

    def transaction(self, texts: dict[str, str | None], now: float = 0.0, *, delta: bool = True) -> bool:
        """Commit one; return whether the files were written."""
        table: Any = self.state.tables["texts"]
        for key, text in texts.items():
            if text is None:
                table.delete(key)
            else:
                table[key] = text
        self.state.commit(self.state.freeze(), delta=delta)
        self.number += 1
        return delta and self.state.settle(b"%d" % self.number, now)

    @staticmethod
    def reopened(directory: Path) -> tuple[bytes | None, int]:
        """Return the label and the number of rows that the next process finds."""
        store = local(directory).open(PLACE, ("texts",))
        try:
            return store.label(), store.count("texts")
        finally:
            store.close()

    @property
    def in_files(self) -> int:
        return len(contents(self.store, "texts"))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.store.close()


def test_rows_bytes_or_time_let_it_write(files: Files) -> None:
    assert not files.transaction({"a": "x", "b": "x"})
    assert not files.transaction({"a": "y", "b": "y"})  # the same rows
    assert (files.in_files, files.store.label()) == (1, b"1")
    assert files.transaction({"c": "x", "d": "x", "e": "x"})
    assert (files.in_files, files.store.label()) == (6, b"4")
    assert files.transaction({"f": "x" * 1_000})
    assert not files.transaction({"g": "x"}, 100.0)
    assert not files.transaction({"h": "x"}, 109.0)
    assert files.transaction({"i": "x"}, 110.0)
    assert files.in_files == 10


def test_a_partition_writes_before_its_records_wait_long_for_it() -> None:
    """Alone it may not use up what the partitions of a process share."""
    behind = WriteBehind(50, 1_000, 10.0, most=10)
    assert [behind.is_due(rows, 0, 0.0) for rows in (0, 9, 10, 49)] == [False, False, True, True]


def test_deleted_rows_that_ranges_pass_let_it_write(tmp_path: Path) -> None:
    """Otherwise a table that is used as a queue would pass all rows that wait to be deleted at each look for the first.

    Rows that a range does not pass cost nothing, so they wait.
    """

    class Queue(Handler[bytes]):
        waiting = Table(key=int, value=int, storage="disk", sorted=True)

    behind = WriteBehind(1_000, passed=12)
    tables = DiskTables(
        Queue,
        frozenset({"waiting"}),
        local(tmp_path),
        DecodedBudget(1_000_000),
        traced=False,
        track_delta=True,
        behind=behind,
    )
    state = tables.empty_state(tables.open(PLACE))
    queue: Any = state.tables["waiting"]
    for number in range(100):
        queue[number] = number
    state.commit(state.freeze(), delta=True)
    state.flush(b"0")
    written = []
    for number in range(8):
        first, _ = queue.first()
        del queue[first]
        assert next(queue.range(50)) == (50, 50)
        state.commit(state.freeze(), delta=True)
        written.append(state.settle(b"%d" % number, 0.0))
    assert written == [False] * 5 + [True] + [False] * 2  # 0 + 1 + 2 + 3 + 4 + 5 rows passed
    assert queue.first() == (8, 8)
    state.close(flush=False)


def test_partitions_share_what_may_wait(tmp_path: Path) -> None:
    files = Files(tmp_path, partitions=5)
    assert files.transaction({"a": "x"})
    files.store.close()


def test_a_full_snapshot_writes_what_waits(files: Files) -> None:
    """It is of the last commit record, not of an earlier one."""
    files.transaction({"a": "x", "first": None})
    assert [change.keys for change in files.state.pieces(100)] == [["a"]]
    assert (files.in_files, files.store.label()) == (1, b"2")


def test_a_clean_stop_writes_what_waits(files: Files, tmp_path: Path) -> None:
    """The next start reads no delta. Without a label of their own the rows stay out, and a full disk ends no stop."""
    files.transaction({"a": "x"})
    files.state.close(flush=True)
    files.state.close(flush=True)
    assert Files.reopened(tmp_path) == (b"2", 2)


@pytest.mark.parametrize("why", ["killed", "no delta", "full disk"])
def test_what_waits_stays_out_otherwise(
    why: str, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.transaction({"a": "x"})
    if why == "no delta":
        files.transaction({"b": "x"}, delta=False)
    if why == "full disk":

        def full(store: Any, batch: Batch, label: bytes | None) -> None:
            raise LocalStoreFailed("no room", topic="input", partition=3)

        monkeypatch.setattr(LmdbStore, "apply", full)
    files.state.close(flush=why != "killed")
    assert Files.reopened(tmp_path) == (b"1", 1)


def test_a_standby_replica_has_no_share_of_what_may_wait(files: Files) -> None:
    """Its rows wait on their own; the owner's partitions share, and one that has left gives its share back."""
    replica = files.tables.replica(files.tables.open(PLACE))
    assert not files.transaction({"a": "x", "b": "x", "c": "x"})
    files.tables.own(replica)
    assert files.transaction({"d": "x"})
    replica.close(flush=False)
    assert not files.transaction({"a": "y", "b": "y", "c": "y"})


def test_a_label_is_never_written_with_rows_of_a_later_commit(files: Files) -> None:
    """A commit without a delta has no label of its own."""
    files.transaction({"a": "x"})
    files.transaction({"a": "y"}, delta=False)
    assert [change.values for change in files.state.pieces(100)] == [[files.state.tables["texts"].encode("a")]]
    assert files.store.label() == b"1"


def test_reads_see_the_newest_value_in_whatever_layer(files: Files) -> None:
    table = files.state.tables["texts"]
    assert isinstance(table, DiskTable)
    files.transaction({"first": "b", "a": "x", "b": "x", "c": "x", "d": "x"})  # written, and still in memory
    files.transaction({"a": "y", "b": None})  # waits
    table.rollback()  # drops decoded values
    assert dict(table.items()) == {"first": "b", "a": "y", "c": "x", "d": "x"}
    assert [table.get(key) for key in ("first", "a", "b", "c", "e")] == ["b", "y", None, "x", None]
    assert len(table) == 4
    files.transaction(dict.fromkeys(("first", "a", "c", "d")) | dict.fromkeys("jklmn", "z"))
    assert files.in_files == len(table) == 5
    before, files.state = files.state.digest, DiskState([table], files.store)
    files.state.loaded()
    assert files.state.digest == before


def test_rows_that_are_read_together_are_checked(files: Files) -> None:
    """Rule X4: the old values of rows that a transaction replaces without reading them."""
    files.transaction(dict.fromkeys("abcde", "x"))
    files.transaction(dict.fromkeys("fghij", "x"))
    place, row = next(iter(contents(files.store, "texts").items()))
    files.store.apply({"texts": {place: row[:-1] + bytes([row[-1] ^ 1])}}, b"3")
    with pytest.raises(LocalStoreFailed, match="checksum"):
        files.transaction({"a": "y", "b": "y"})
