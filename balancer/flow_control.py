"""Decides which partitions to pause and resume, and whether to poll. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple


class FlowDecision(NamedTuple):
    """Partitions to pause, partitions to resume, and whether to poll in this turn."""

    pause: frozenset[int]
    resume: frozenset[int]
    poll: bool


@dataclass(slots=True)
class FlowControl:
    """High and low watermark, in records: `high` of each partition's queue, `low` of each queue and of all together.

    While the running queues hold more than `low` together, the manager skips polls: the client keeps the records in
    fewer bytes, and records that wait in a queue have left the processor's caches when the handler gets them. It skips
    for at most `patience` seconds, because only a poll reports rebalances, and for at most `glance` seconds if one of
    the partitions holds `low` or less, because the others may be slow. A partition is paused at `high`, if another one
    needs a poll. A pause discards the records that the client has prefetched.
    """

    high: int
    low: int
    patience: float = 0.5
    glance: float = 0.01
    _fed_since: float | None = None

    def decide(self, depths: Mapping[int, int], paused: AbstractSet[int], now: float, *, empty: bool) -> FlowDecision:
        """Decide from the lengths of the queues with records, and from the set that flow control has paused.

        `empty`: a live partition's queue has no records.
        """
        resume = frozenset(p for p in paused if depths.get(p, 0) <= self.low and p in depths)
        running = depths.keys() - paused
        full = frozenset(p for p in running if depths[p] >= self.high)
        if resume or sum(depths[p] for p in running) <= self.low:
            self._fed_since = None
            return FlowDecision(full, resume, True)
        if self._fed_since is None:
            self._fed_since = now
        hungry = empty or any(depths[p] <= self.low for p in running)
        if now - self._fed_since < (self.glance if hungry else self.patience):
            return FlowDecision(frozenset(), frozenset(), False)
        self._fed_since = None
        return FlowDecision(full, frozenset(), True)
