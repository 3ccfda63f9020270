"""A table that detects values which were changed in place or would not survive a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from statehold.api.values.difference import brief
from statehold.errors import MutatedInPlace, UsageError
from statehold.state.partition_table import ABSENT, PartitionTable

K = TypeVar("K")
V = TypeVar("V")


class TracedTable(PartitionTable[K, V]):
    """Keeps the bytes of each value that was read. Slower; for development and tests."""

    plain = False
    #: stored form of each value that the open transaction has read; the class's own stays empty
    _reads: dict[Any, bytes] = {}  # noqa: RUF012

    def get(self, key: K, default: Any = None) -> Any:
        self._require_own_thread()
        value: Any = super().get(key, ABSENT)
        return default if value is ABSENT else self._note_read(key, value)

    def __getitem__(self, key: K) -> V:
        self._require_own_thread()
        value: V = self._note_read(key, super().__getitem__(key))
        return value

    def __contains__(self, key: object) -> bool:
        self._require_own_thread()
        return super().__contains__(key)

    def __len__(self) -> int:
        self._require_own_thread()
        return super().__len__()

    def __iter__(self) -> Iterator[K]:
        self._require_own_thread()
        return super().__iter__()

    def __setitem__(self, key: K, value: V) -> None:
        self._require_own_thread()
        super().__setitem__(key, value)

    def put(self, key: K, value: V) -> None:
        self._require_own_thread()
        super().put(key, value)

    def _replace(self, key: K, value: V) -> None:
        self._require_own_thread()
        super()._replace(key, value)

    def delete(self, key: K) -> None:
        self._require_own_thread()
        super().delete(key)

    def _require_own_thread(self) -> None:
        """:raises UsageError: this is not the first thread that used the table, which is the partition's."""
        me = threading.current_thread()
        owner: threading.Thread = self.__dict__.setdefault("_owner", me)
        if owner is not me:
            raise UsageError(
                f"table {self.name!r} belongs to thread {owner.name!r} and was used on thread {me.name!r}: its "
                f"partition may commit or move meanwhile. Next: read what the other thread needs on the "
                f"partition's thread, and pass it on; the program around the service "
                f"reads the state with key_lookup.Finder (docs/reference/ops.md)"
            )

    def rollback(self) -> None:
        """Also drop the values that were changed in place."""
        super().rollback()
        for key in self._reads:
            self._cache.pop(key, None)
        self._reads = {}

    def check_in_place(self) -> None:
        """:raises MutatedInPlace: a value of the open transaction was changed in place."""
        for key, before in self._reads.items():
            value = self._cache.get(key, ABSENT)
            if key not in self._dirty and value is not ABSENT and self.serde.encode(value) != before:
                raise MutatedInPlace(
                    f"table {self.name!r}, key {key!r}: the value was changed in place and would be lost. "
                    f"Next: put() a new value instead, best of a frozen type"
                )
        self._reads = {}

    def _surely_come_back(self, values: Collection[Any]) -> bool:
        """Compare each value that only the user's own serde knows."""
        return self._certainly_same is not None and self._certainly_same(values)

    def _difference(self, live: Any, back: Any) -> str | None:
        """Also compare values that only the user's own serde knows: by their types and bytes."""
        if self._certainly_same is not None:
            return super()._difference(live, back)
        if type(live) is type(back) and self.serde.encode(live) == self.serde.encode(back):
            return None
        return f"{brief(live)} would be {brief(back)} after a restore"

    def _note_read(self, key: K, value: Any) -> Any:
        if key not in self._reads and key not in self._dirty:
            if not self._reads:
                self._reads = {}
            self._reads[key] = self.serde.encode(value)
        return value
