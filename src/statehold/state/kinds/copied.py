"""A table of mutable values: what is put and what is read are copies, so a change in place changes no state."""

from __future__ import annotations

from typing import Any, TypeVar

from statehold.state.partition_table import ABSENT, PartitionTable

K = TypeVar("K")
V = TypeVar("V")


class CopiedTable(PartitionTable[K, V]):
    """Costs an encoding and a decoding for each put, and for each read."""

    plain = False

    def get(self, key: K, default: Any = None) -> Any:
        value: Any = super().get(key, ABSENT)
        return default if value is ABSENT else self._copy_of(value)

    def __getitem__(self, key: K) -> V:
        return self._copy_of(super().__getitem__(key))

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, self._copy_of(value))

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def _replace(self, key: K, value: V) -> None:
        super()._replace(key, self._copy_of(value))

    def _copy_of(self, value: V) -> V:
        return self.decode(self.encode(value))
