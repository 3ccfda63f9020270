"""The rows of a join as they were before segments had digests of their own: hashed again, and removed one by one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from statehold.api.joins import Row
from statehold.state.kinds.joins import JoinTable
from statehold.state.partition_table import Changes, PartitionTable


class JoinTableBefore(JoinTable[Any, Any, Any]):
    """The reference: the same rows, changes and digests as `JoinTable`, with nothing kept for a segment."""

    plain = False

    def _empty(self) -> None:
        super()._empty()
        self._lists: dict[int, list[Row[Any]]] | None = None
        self._gone: dict[int, list[Row[Any]]] = {}

    def freeze(self) -> Changes:
        first = (self._now - self._stays) // self._span
        end = first * self._span
        for row in [row for row in self._dirty if row[2] < end and row not in self.stored]:
            self.end(row)
        over = [(number, rows) for number, rows in sorted(self._by_number().items()) if number < first]
        leaving = {number: [row for row in dict.fromkeys(rows) if row in self.stored] for number, rows in over}
        gone = list(chain.from_iterable(leaving.values()))
        for row in gone:
            self._dirty.pop(row, None)
        changes = PartitionTable.freeze(self)
        self._index.freeze()
        self._gone = leaving
        return Changes(self.name, changes.keys + gone, changes.values + [None] * len(gone)) if gone else changes

    def commit(self) -> None:
        deleted = [row for row, value in self._frozen.items() if value is None and row not in self._dirty]
        PartitionTable.commit(self)
        gone = list(chain.from_iterable(self._gone.values()))
        for row in gone:
            del self.stored[row]
            self._cache.pop(row, None)
        self._tombed.update(gone)
        self._trim()
        for number in self._gone:
            self._by_number().pop(number, None)
        if self._rows is not None:
            self._rows.discard(chain(deleted, gone))
        self._index.commit()

    def apply(self, keys: list[Row[Any]], values: list[bytes | None]) -> None:
        order, known = self.order, len(self.order)
        PartitionTable.apply(self, keys, values)
        if self._lists is not None and order is self.order:
            self._assign(order[known:])
        else:
            self._lists = None

    def rollback(self) -> None:
        super().rollback()
        self._gone = {}

    def loaded(self) -> None:
        super().loaded()
        self._lists = None

    def _by_number(self) -> dict[int, list[Row[Any]]]:
        if self._lists is None:
            self._lists = {}
            self._assign(self.stored)
        return self._lists

    def _assign(self, rows: Iterable[Row[Any]]) -> None:
        assert self._lists is not None
        for row in rows:
            self._lists.setdefault(row[2] // self._span, []).append(row)
