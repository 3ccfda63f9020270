"""Which partitions to pause and to resume, and whether to poll at all: pure, the time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple


class Decision(NamedTuple):
    pause: frozenset[int]
    resume: frozenset[int]
    poll: bool


@dataclass(slots=True)
class Flow:
    """High and low water in records.

    Pausing throws the client's read-ahead away, so while everything that could deliver is full the manager rather does
    not poll, for `patience` seconds at most: rebalances are only heard of while polling.
    """

    high: int
    low: int
    patience: float = 0.5
    _full_since: float | None = None

    def decide(self, depths: Mapping[int, int], paused: AbstractSet[int], now: float) -> Decision:
        """`depths` of the live partitions; `paused` those of them that this flow has paused."""
        resume = frozenset(p for p in paused if depths.get(p, 0) <= self.low and p in depths)
        running = depths.keys() - paused
        full = frozenset(p for p in running if depths[p] >= self.high)
        if not full or full != running or resume:
            self._full_since = None
            return Decision(full, resume, True)
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < self.patience:
            return Decision(frozenset(), frozenset(), False)
        self._full_since = None
        return Decision(full, frozenset(), True)
