"""Holds the tables of one partition as bytes, with their digest and the changes since the last delta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from statehold.state.changed_keys import ChangedKeys
from statehold.state.digest import MODULUS, hash128, seeds, table_digest
from statehold.state.partition_table import Changes, PartitionTable


class Frozen(msgspec.Struct, frozen=True):
    """The writes of one transaction, with the digest of the state after them."""

    changes: tuple[Changes, ...]
    #: the tables that it changes
    tables: tuple[str, ...]
    digest: int
    keys: int
    #: the tables that have no keys after them
    emptied: tuple[str, ...] = ()


class State:
    """The state of one partition: freeze, then commit or roll back. Deltas and full snapshots hold committed writes.

    `track_delta`: remember the keys of commits without a delta for the next delta. This is needed even if every commit
    carries one, because the first delta after a replay holds the changes of the gap. Only the partition's own thread
    uses it.
    """

    def __init__(self, tables: Iterable[PartitionTable[Any, Any]], *, track_delta: bool = False) -> None:
        self.tables: dict[str, PartitionTable[Any, Any]] = {}
        self.key_types: dict[str, Any] = {}
        self.digest = 0
        #: odd while a commit changes the stored values, for readers on other threads
        self.version = 0
        self._track = track_delta
        #: keys written since the last committed delta, by table (rule D2)
        self._since_delta: dict[str, dict[Any, None]] = {}
        #: notes what has changed since the newest full snapshot began; None: nothing asks for it
        self.changed: ChangedKeys | None = None
        for table in tables:
            self.tables[table.name], self.key_types[table.name] = table, table.key_type
            self._since_delta[table.name] = {}

    @property
    def keys(self) -> int:
        count = 0
        for table in self.tables.values():
            count += len(table.stored)
        return count

    @property
    def used(self) -> list[str]:
        """The tables that have keys."""
        return [name for name, table in self.tables.items() if table.stored]

    def stored_bytes(self) -> int:
        """Return the bytes of all stored values."""
        size = 0
        for table in self.tables.values():
            size += sum(map(len, table.stored.values()))
        return size

    def freeze(self) -> Frozen:
        """Return the open writes as bytes, and the digest after them. The committed state is unchanged."""
        digest, keys = self.digest, 0
        changes: list[Changes] = []
        written: list[str] = []
        emptied: list[str] = []
        for table in self.tables.values():
            keys += len(table.stored)
            if (change := table.freeze()).keys:
                changes.append(change)
                written.append(change.table)
        for change in changes:
            try:
                added, born = self._effect(change)
            except (TypeError, ValueError, OverflowError):  # a key cannot be encoded, such as an int of 65 bits
                self.tables[change.table].check_keys(change.keys)
                raise
            digest, keys = digest + added, keys + born
            if len(self.tables[change.table].stored) + born == 0:
                emptied.append(change.table)
        return Frozen(tuple(changes), tuple(written), digest % MODULUS, keys, tuple(emptied))

    def commit(self, frozen: Frozen, *, delta: bool) -> None:
        """Make the frozen writes part of the state; `delta` says whether their commit record carried one."""
        if self.changed is not None:
            self._note_changed(self.changed, frozen.changes)
        for table in self.tables.values():
            table.commit()
        self.digest = frozen.digest
        if delta:
            if any(self._since_delta.values()):
                self._since_delta = {name: {} for name in self.tables}
        elif self._track:
            for change in frozen.changes:
                self._since_delta[change.table].update(dict.fromkeys(change.keys))

    def rollback(self) -> None:
        """Discard the open writes; the set of keys since the last delta stays (rule D2)."""
        for table in self.tables.values():
            table.rollback()

    def delta(self, frozen: Frozen) -> tuple[Changes, ...]:
        """Return every key written since the last delta: absolute values and tombstones (rule D3)."""
        if not any(self._since_delta.values()):
            return frozen.changes
        fresh = {change.table: change for change in frozen.changes}
        merged = (self._merge(name, older, fresh.get(name)) for name, older in self._since_delta.items())
        return tuple(changes for changes in merged if changes.keys)

    def load(self, changes: Changes) -> None:
        """Set committed values during a restore; `loaded` computes the digest."""
        self.tables[changes.table].load(changes.keys, changes.values)

    def follow(self, changes: Changes) -> None:
        """Apply the changes that another owner has committed, and update the digest."""
        added, _ = self._effect(changes)
        self.tables[changes.table].apply(changes.keys, changes.values)
        self.digest = (self.digest + added) % MODULUS

    def taken_over(self) -> None:
        """Build what depends on whole tables, after the last `follow`; the digest stays."""
        for table in self.tables.values():
            table.loaded()

    def loaded(self) -> None:
        """Complete a restore: compute the digest from the stored values alone."""
        self.digest = 0
        for name, table in self.tables.items():
            table.loaded()
            self.digest += table_digest(name, table.order, table.stored.values())
        self.digest %= MODULUS

    def pieces(self, size: int) -> Iterator[Changes]:
        """Yield the keys of now, in pieces, each with the values of the time when it is read; freezing is O(1).

        With a true attribute `exact` all pieces so far are of the commit at which it was called.
        """
        frozen = [(table, table.order, len(table.order)) for table in self.tables.values()]
        return _pieces(frozen, size)

    def differs(self, cause: str) -> None:
        """Take note that a full snapshot found another state than that of the commit record."""

    def close(self, *, flush: bool) -> None:
        """Free what is not memory. `flush`: the process ends. A second call does nothing."""

    def _note_changed(self, changed: ChangedKeys, changes: Iterable[Changes]) -> None:
        for change in changes:
            if changed.crowded:
                return
            fresh = changed.fresh(change)
            changed.rest -= _values_digest(self.before(fresh), list(seeds(fresh.table, fresh.keys)))[0]

    def _merge(self, name: str, older: dict[Any, None], fresh: Changes | None) -> Changes:
        stored = self.tables[name].stored
        values = {key: stored.get(key) for key in older}
        if fresh is not None:
            values.update(zip(fresh.keys, fresh.values, strict=True))
        return Changes(name, list(values), list(values.values()))

    def _effect(self, changes: Changes) -> tuple[int, int]:
        """Return what these changes add to the digest and to the number of keys."""
        table = self.tables[changes.table]
        if table.segmented:
            return table.effect(changes, self.before)
        key_seeds = list(seeds(changes.table, changes.keys))
        after, entered = _values_digest(changes.values, key_seeds)
        before, left = _values_digest(self.before(changes), key_seeds)
        return after - before, entered - left

    def before(self, changes: Changes) -> list[bytes | None]:
        """Return the committed values of the changed keys."""
        return list(map(self.tables[changes.table].stored.get, changes.keys))


def _pieces(frozen: list[tuple[PartitionTable[Any, Any], list[Any], int]], size: int) -> Iterator[Changes]:
    for table, order, length in frozen:
        for low in range(0, length, size):
            keys = order[low : min(low + size, length)]
            values = list(map(table.stored.get, keys))
            if None in values:
                keys = [key for key, value in zip(keys, values, strict=True) if value is not None]
                values = [value for value in values if value is not None]
            yield Changes(table.name, keys, values)


def _values_digest(values: list[bytes | None], key_seeds: list[int]) -> tuple[int, int]:
    """Return the sum of the hashes of the values that are there, and their number."""
    if None not in values:
        return sum(map(hash128, values, key_seeds)), len(values)  # type: ignore[arg-type]
    total = count = 0
    for value, seed in zip(values, key_seeds, strict=True):
        if value is not None:
            total, count = total + hash128(value, seed), count + 1
    return total, count
