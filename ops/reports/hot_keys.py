"""Finds the keys that most of the backlog has: the records between the group's committed offsets and the ends.

The sketch is that of Misra and Gries (Finding repeated elements, 1982): with n counters a key whose count is above
1/(n + 1) of the records is never missing, and a count is too low by at most that part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from statehold.common.names import Names
from statehold.common.visible import key_as_text
from statehold.ops.reports.lag import Lags
from statehold.ports import OutOfRange

#: counters for each partition of a topic: a key with half a percent of its records is found
_COUNTERS: Final = 200
#: most offsets that are read of a partition, in slices over its whole backlog
_MOST: Final = 20_000
_SLICES: Final = 20
#: the part of a partition's backlog that makes a key hot
HOT: Final = 0.1
_LONGEST: Final = 80


class HotKey(msgspec.Struct, frozen=True):
    """A key of one partition of an input."""

    topic: str
    partition: int
    #: as text; None: the records without a key
    key: str | None
    #: records of the backlog with this key: at most half a percent of the partition's backlog above the true number,
    #: and never below; if the backlog was sampled, an estimate from its sample
    records: int
    #: their part of the partition's backlog, 0 to 1, likewise
    share: float


class KeyBacklog(msgspec.Struct, frozen=True):
    """The backlog of a service, by key."""

    #: offsets from the committed ones to the ends, as `Lag.records`
    behind: int
    #: records that were read
    read: int
    #: whether parts of the backlog were left out
    sampled: bool
    keys: tuple[HotKey, ...] = ()


class FrequentKeys:
    """Counts keys in bounded memory. Used by one thread."""

    def __init__(self, counters: int = _COUNTERS) -> None:
        self.seen = 0
        #: by how much a count may be too low
        self.error = 0
        self._most, self._counts = counters, dict[bytes | None, int]()

    def add(self, key: bytes | None) -> None:
        """Count a record. An unknown key without a free counter takes one from each, so a record costs O(1) overall."""
        self.seen += 1
        counts = self._counts
        if key in counts:
            counts[key] += 1
        elif len(counts) < self._most:
            counts[key] = 1
        else:
            self.error += 1
            self._counts = {each: count - 1 for each, count in counts.items() if count > 1}

    def counts(self) -> dict[bytes | None, int]:
        """Return the counts, each too low by at most `error`."""
        return dict(self._counts)


def key_backlog(lags: Lags, names: Names, least: float = HOT) -> KeyBacklog:
    """Read the backlog of each input, those of each `Rekey` too, and return its keys with that part or more of one.

    Reads at most 20,000 offsets of each partition. Blocks for seconds.

    :raises KafkaTrouble: the offsets or the records could not be read.
    """
    behind = read = 0
    sampled = False
    found: list[HotKey] = []
    for topic in names.inputs:
        committed = lags.cluster.committed(topic, lags.partitions)
        for partition in range(lags.partitions):
            start, end, _ = lags.cluster.ends(topic, partition)
            begin = max(start, committed.get(partition) or start)
            if begin >= end:
                continue
            sketch = FrequentKeys()
            for key in _keys(lags, topic, partition, begin, end):
                sketch.add(key)
            if not sketch.seen:  # only the markers of transactions are left
                continue
            behind, read = behind + end - begin, read + sketch.seen
            sampled = sampled or end - begin > _MOST
            records = end - begin if end - begin > _MOST else sketch.seen
            found += _hot(topic, partition, sketch, records, least)
    return KeyBacklog(behind, read, sampled, tuple(sorted(found, key=lambda each: -each.records)))


def slices(begin: int, end: int) -> list[tuple[int, int]]:
    """Return the offsets to read: all, or slices of equal length and distance."""
    if end - begin <= _MOST:
        return [(begin, end)]
    length = _MOST // _SLICES
    step = (end - begin - length) / (_SLICES - 1)
    return [(at, at + length) for at in (begin + round(step * number) for number in range(_SLICES))]


def _keys(lags: Lags, topic: str, partition: int, begin: int, end: int) -> Iterator[bytes | None]:
    for first, last in slices(begin, end):
        try:
            for batch in lags.reader.read(topic, partition, first, last):
                for message in batch:
                    yield message.key()
        except OutOfRange:
            continue  # it was handled and deleted meanwhile


def _hot(topic: str, partition: int, sketch: FrequentKeys, records: int, least: float) -> Iterator[HotKey]:
    for key, count in sketch.counts().items():
        share = min(1.0, (count + sketch.error) / sketch.seen)
        if share >= least:
            yield HotKey(topic, partition, _text(key), round(records * share), round(share, 4))


def _text(key: bytes | None) -> str | None:
    """Return a key as `statehold dlq` writes it, too; a long one is cut."""
    if key is None:
        return None
    text = key_as_text(key)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
