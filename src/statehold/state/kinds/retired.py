"""A table that the code no longer uses: its rows stay in the state as they are, until they are dropped (rule D8)."""

from __future__ import annotations

from typing import TypeVar

from statehold.state.partition_table import PartitionTable

K = TypeVar("K")


class RetiredTable(PartitionTable[K, bytes]):
    """Keeps stored values of any type and version, and decodes none. No handler gets it."""
