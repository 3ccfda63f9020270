"""The keys of a backlog: a sketch in bounded memory misses no hot key, and a long backlog is read in slices."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from statehold.api.record import MemoryMessage
from statehold.common.names import Names
from statehold.ops.reports.hot_keys import FrequentKeys, key_backlog, slices
from statehold.ops.reports.lag import Lags
from statehold.ports import OutOfRange


@given(st.lists(st.integers(0, 30)), st.integers(1, 8))
def test_a_key_above_its_part_is_never_missing_and_no_count_is_too_high(keys: list[int], counters: int) -> None:
    sketch, exact = FrequentKeys(counters), Counter(b"%d" % key for key in keys)
    for key in keys:
        sketch.add(b"%d" % key)
    found = sketch.counts()
    assert len(found) <= counters
    assert sketch.error <= len(keys) / (counters + 1)
    for name, count in exact.items():
        assert count - sketch.error <= found.get(name, 0) <= count


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_slices_cover_a_short_backlog_and_span_a_long_one(begin: int, length: int) -> None:
    found = slices(begin, begin + length)
    assert found[0][0] == begin
    assert found[-1][1] == begin + length
    assert sum(last - first for first, last in found) == min(length, 20_000)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))


class FakeLags:
    """Two partitions: half of the records of partition 1 have one key, and its first ones are handled."""

    partitions = 2

    def __init__(self, records: int, committed: int, gone: int = 0) -> None:
        chance = random.Random(1)
        self.keys = [b"hot" if chance.random() < 0.5 else b"%d" % n for n in range(records)]
        self._committed, self._gone, self.reads = committed, gone, 0
        self.cluster = self.reader = self

    def committed(self, topic: str, partitions: int) -> dict[int, int]:
        return {1: self._committed} if topic == "rows" else {}

    def ends(self, topic: str, partition: int) -> tuple[int, int, int]:
        end = len(self.keys) if (topic, partition) == ("rows", 1) else 0
        return 0, end, end

    def read(self, topic: str, partition: int, first: int, last: int) -> Iterator[Sequence[MemoryMessage]]:
        if first < self._gone:
            raise OutOfRange("gone")
        self.reads += last - first
        yield [MemoryMessage(topic, partition, n, b"", self.keys[n]) for n in range(first, last)]


def backlog(lags: FakeLags) -> Any:
    return key_backlog(cast("Lags", lags), Names("s", "rows", others=("s.by.rekey",)))


def test_a_hot_key_is_found_with_its_partition_and_its_part() -> None:
    found = backlog(FakeLags(records=3000, committed=1000))
    assert (found.behind, found.read, found.sampled) == (2000, 2000, False)
    (key,) = found.keys
    assert (key.topic, key.partition, key.key) == ("rows", 1, "hot")
    assert abs(key.share - 0.5) < 0.05
    assert key.records == round(2000 * key.share)


def test_a_long_backlog_is_sampled_and_its_counts_are_those_of_the_whole() -> None:
    lags = FakeLags(records=300_000, committed=0, gone=1)
    found = backlog(lags)
    assert found.sampled
    assert lags.reads == 19_000  # the first slice is gone
    (key,) = found.keys
    assert abs(key.records - 150_000) < 10_000


def test_a_key_with_a_tenth_is_found_among_keys_that_come_once() -> None:
    """The sketch counts 1,951 of them, which is less than a tenth."""
    lags = FakeLags(records=20_000, committed=0)
    hot = set(range(0, 20_000, 10)) | set(range(1, 400, 10))
    lags.keys = [b"hot" if n in hot else b"%d" % n for n in range(20_000)]
    (key,) = backlog(lags).keys
    assert key.key == "hot"
    assert 2_040 <= key.records <= 2_040 + 100


def test_nothing_waits() -> None:
    assert backlog(FakeLags(records=5, committed=5)).keys == ()
