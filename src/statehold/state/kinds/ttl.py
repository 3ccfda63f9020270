"""Tables whose keys expire by the partition's own time: tables with a `ttl`, and `Dedupe`."""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

from statehold.api.declaration import options_of
from statehold.api.table import Dedupe, DedupeOptions, Table
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.due_index import DueTable
from statehold.state.partition_table import PartitionTable

K = TypeVar("K")
V = TypeVar("V")

#: most keys of one table that are removed before a record, so that many expiries do not delay it. Never change it,
#: because a replay would arrive at another state (docs/reference/format.md).
SWEEP: Final = 8


class ExpiringTable(PartitionTable[K, V]):
    """A key expires `ttl` after its last put. It is hidden at once, and removed with one of the next records."""

    #: set by the engine; in a tool that only reads states nothing expires
    _expiry: DueTable[K, int] | None = None
    _clock: ClockTable

    def follow(self, expiry: DueTable[K, int], clock: ClockTable) -> None:
        self._expiry, self._clock = expiry, clock

    @property
    def expiries(self) -> DueTable[K, int] | None:
        """When each key expires; None in a tool that only reads states."""
        return self._expiry

    @property
    def kept_for(self) -> int:
        """Milliseconds from a put to its expiry."""
        return self.ttl

    @property
    def next_expiry(self) -> float:
        """The earliest possible expiry."""
        return self._expiry.earliest if self._expiry is not None else math.inf

    def sweep(self) -> None:
        """Remove some of the expired keys."""
        expiry, now = self._expiry, self._clock.now
        for _ in range(SWEEP):
            if expiry is None or (key := expiry.take(now)) is None:
                return
            expiry.delete(key)
            if super().__contains__(key):
                self._expire(key)

    def get(self, key: K, default: Any = None) -> Any:
        return default if self._expired(key) else super().get(key, default)

    def __getitem__(self, key: K) -> V:
        if self._expired(key):
            raise self._missing(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) and not self._expired(key)

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if self._expiry is not None:
            when = self._clock.now + self.ttl
            if self._expiry.get(key) != when:
                self._expiry[key] = when

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def delete(self, key: K) -> None:
        if key in self:
            super().delete(key)
            if self._expiry is not None:
                self._expiry.delete(key)

    def _expired(self, key: Any) -> bool:
        if self._expiry is None:
            return False
        when = self._expiry.get(key)
        return when is not None and when <= self._clock.now


class DedupeTable(DueTable[K, int], Dedupe[K]):
    """Keys that were seen, each with the time until which it is kept."""

    _clock: ClockTable | None = None

    def __init__(self, declaration: Dedupe[K]) -> None:
        options: DedupeOptions = options_of(declaration)
        super().__init__(Table(key=options.key_type, value=int, storage=options.storage), options.name)
        self.name = options.was or options.name
        self._for, self._most = options.ttl, options.most

    def follow(self, clock: ClockTable) -> None:
        self._clock = clock

    def seen(self, key: K) -> bool:
        assert self._clock is not None
        now = self._clock.now
        until = self.get(key)
        if until is not None and until > now:
            return True
        self[key] = now + self._for
        if self._most and self.count > self._most and (first := self.take(math.inf)) is not None:
            self.delete(first)
        return False

    @property
    def expiries(self) -> DueTable[K, int]:
        """Until when each key is kept."""
        return self

    @property
    def kept_for(self) -> int:
        """Milliseconds for which a key is kept."""
        return self._for

    @property
    def next_expiry(self) -> float:
        """The earliest possible expiry."""
        return self.earliest

    def sweep(self) -> None:
        """Remove some of the expired keys."""
        assert self._clock is not None
        for _ in range(SWEEP):
            if (key := self.take(self._clock.now)) is None:
                return
            self.delete(key)
