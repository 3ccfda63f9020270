"""Notes the keys whose committed values have changed since a commit, for a full snapshot that writes only those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statehold.state.partition_table import Changes, PartitionTable


class ChangedKeys:
    """The keys changed since the commit at which it was created, and what their values of then add to the digest.

    It is exact as long as every committed change is noted before it is applied. Only the partition's thread uses it.
    """

    def __init__(self, digest: int, limit: int) -> None:
        """`digest` is that of the state now. Beyond `limit` keys it forgets them: `crowded`."""
        self._limit = limit
        self._tables: dict[str, dict[Any, None]] = {}
        #: number of keys
        self.count = 0
        #: digest of the keys that have not changed
        self.rest = digest
        #: too many keys have changed, so it notes no more
        self.crowded = False

    def fresh(self, changes: Changes) -> Changes:
        """Note the keys of these changes; return those that had not changed before. It has no values."""
        known = self._tables.setdefault(changes.table, {})
        keys = [key for key in changes.keys if key not in known]
        known.update(dict.fromkeys(keys))
        self.count += len(keys)
        if self.count > self._limit:
            self.crowded = True
            self._tables = {}
        return Changes(changes.table, keys, [])

    def pieces(self, tables: dict[str, PartitionTable[Any, Any]], size: int) -> Iterator[Changes]:
        """Yield the keys in pieces, each with the values of the time when it is read; None: deleted."""
        for name, noted in self._tables.items():
            stored, keys = tables[name].stored, list(noted)
            for low in range(0, len(keys), size):
                some = keys[low : low + size]
                yield Changes(name, some, list(map(stored.get, some)))
