"""A table that detects values which were changed in place or would not survive a snapshot."""

from __future__ import annotations

from typing import Any, TypeVar

from statehold.errors import MutatedInPlace, UsageError
from statehold.table import ABSENT, PartitionTable

K = TypeVar("K")
V = TypeVar("V")


class TracedTable(PartitionTable[K, V]):
    """Keeps the bytes of each value that was read. Slower; for development and tests."""

    def get(self, key: K, default: Any = None) -> Any:
        value: Any = super().get(key, ABSENT)
        return default if value is ABSENT else self._note_read(key, value)

    def __getitem__(self, key: K) -> V:
        value: V = self._note_read(key, super().__getitem__(key))
        return value

    def rollback(self) -> None:
        """Also drop the values that were changed in place."""
        super().rollback()
        for key in self._reads:
            self._cache.pop(key, None)
        self._reads.clear()

    def check_in_place(self) -> None:
        """Check the values of the open transaction.

        :raises MutatedInPlace: a value was changed in place. :raises UsageError: one does not fit the declared type.
        """
        for key, before in self._reads.items():
            value = self._cache.get(key, ABSENT)
            if key not in self._dirty and value is not ABSENT and self._serde.encode(value) != before:
                raise MutatedInPlace(
                    f"table {self.name!r}, key {key!r}: the value was changed in place and would be lost. "
                    f"Next: put() a new value instead, best of a frozen type"
                )
        self._reads.clear()
        for key, value in self._dirty.items():
            if value is not ABSENT:
                self._check_type(key, value)

    def _check_type(self, key: K, value: Any) -> None:
        try:
            data = self._serde.encode(value)
        except Exception:  # noqa: BLE001 - freeze reports it
            return
        try:
            self._serde.decode(data)
        except Exception as error:  # a decoder may raise anything
            raise UsageError(
                f"table {self.name!r}, key {key!r}: {value!r:.100} would not come back as {self.value_type!r}: {error}"
            ) from error

    def _note_read(self, key: K, value: Any) -> Any:
        if key not in self._reads and key not in self._dirty:
            self._reads[key] = self._serde.encode(value)
        return value

    @property
    def _reads(self) -> dict[K, bytes]:
        reads: dict[K, bytes] = self.__dict__.setdefault("_read", {})
        return reads
