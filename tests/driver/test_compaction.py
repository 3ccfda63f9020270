"""A compaction writes a full snapshot: restores find it, running workers refer to it and skip their own (1.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Accounts, agrees, events, many

from statehold.api.record import Message
from statehold.bound.table import bind
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, FullRef, Manifest
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.restore import restore
from statehold.state.state import State
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink, MemoryReader
from statehold.worker.full_snapshots.compaction_search import CompactionSearch

OPS = many(24)


class Sink(MemoryFullSink):
    """Writes a full to a driver's snapshot topic as a compaction does."""

    def __init__(self, driver: Driver, maker: str) -> None:
        super().__init__(driver.broker, driver.names.snapshot, 0)
        self._maker = maker

    def send(self, payload: bytes) -> None:
        if frame.kind_of(payload) == b"F":
            manifest = records.unpack(payload)
            assert isinstance(manifest, Manifest)
            payload = records.pack(msgspec.structs.replace(manifest, maker=self._maker), manifest.format)
        super().send(payload)


def compacted(driver: Driver, maker: str = "compaction") -> FullRef:
    """A full snapshot of the last committed state, made by another writer."""
    writer, n = compacting(driver, maker)
    ref = writer.advance(n, -1.0, driver.clock)
    assert ref is not None
    return ref


def compacting(driver: Driver, maker: str = "compaction") -> tuple[FullWriter, int]:
    """The same, with nothing written yet."""
    place = inside.place(driver)
    reader = MemoryReader(driver.broker, lambda: False)
    found = restore(reader, place, lambda: State([bind(Accounts.balances)]), lambda *_: None, count().__next__)
    begin = reader.bounds(driver.names.changelog, 0)[0]
    return FullWriter(
        place, found.state, found.commit_record, begin, -1, Sink(driver, maker), 400
    ), found.commit_record.n


def fed(driver: Driver, half: int) -> Driver:
    for op in OPS[:12] if half == 0 else OPS[12:]:
        driver.feed(op)
    driver.commit()
    return driver


def test_a_restore_takes_the_newest_full_snapshot_though_no_commit_record_refers_to_it() -> None:
    driver = fed(Driver(Accounts), 0)
    assert driver.take_full() is not None
    ref = compacted(fed(driver, 1))
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == ref.offset
    assert agrees(driver, OPS)


def test_the_first_commit_record_after_a_restore_from_it_refers_to_it() -> None:
    driver = fed(Driver(Accounts), 0)
    ref = compacted(driver)
    driver.crash()
    driver.restore()
    fed(driver, 1)
    assert driver.commit_record().full_snapshots == (ref,)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_compaction_s_snapshot_is_found_behind_one_that_a_worker_has_begun_since(chunks: int) -> None:
    driver = fed(Driver(Accounts), 0)
    ref = compacted(driver)
    log = driver.broker.log(driver.names.snapshot, 0)
    for i in range(chunks):
        log.append(records.pack(Chunk("worker's", i, -1, msgspec.Raw(b"\x90"))))
    fed(driver, 1)
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == ref.offset
    assert agrees(driver, OPS)


def test_a_restore_does_not_search_the_topic_below_a_full_snapshot_that_it_can_use() -> None:
    driver = Driver(Accounts)
    log = driver.broker.log(driver.names.snapshot, 0)
    for i in range(20):
        log.append(records.pack(Chunk("abandoned", i, -1, msgspec.Raw(b"\x90"))))
    ref = compacted(fed(driver, 0))
    starts: list[int] = []

    class Recording(MemoryReader):
        def read(
            self, topic: str, partition: int, start: int, end: int, most: int = 2000
        ) -> Iterator[Sequence[Message]]:
            if topic == driver.names.snapshot:
                starts.append(start)
            return super().read(topic, partition, start, end, most)

    reader = Recording(driver.broker, lambda: False)
    place = inside.place(driver)
    found = restore(reader, place, lambda: State([bind(Accounts.balances)]), lambda *_: None, count().__next__)
    assert found.full == ref
    assert min(starts) == ref.low


def test_a_workers_full_snapshot_without_a_reference_is_not_used() -> None:
    driver = fed(Driver(Accounts), 0)
    compacted(driver, "worker")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is None
    assert agrees(driver, OPS[:12])


def test_a_damaged_one_is_stepped_over() -> None:
    driver = fed(Driver(Accounts), 0)
    older = compacted(driver)
    newer = compacted(fed(driver, 1))
    driver.broker.log(driver.names.snapshot, 0).replace(newer.low, b"damaged")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == older.offset
    assert agrees(driver, OPS)


def test_a_worker_whose_full_snapshot_is_due_refers_to_it_instead() -> None:
    driver = fed(Driver(Accounts), 0)
    ref = compacted(driver)
    driver.advance(driver.settings.snapshot.full_interval + 1)
    fed(driver, 1)
    driver.advance(10)
    assert events(driver, "full_noticed")[-1]["full"] == ref.offset
    assert not events(driver, "full_started")
    assert driver.commit_record().full_snapshots == (ref,)
    driver.advance(driver.settings.snapshot.full_interval + 1)
    driver.feed(OPS[0])
    driver.commit()
    driver.advance(10)
    assert events(driver, "full_started"), "the same one is not taken for a newer one again"
    driver.crash()
    driver.restore()
    assert agrees(driver, [*OPS, OPS[0]])


def test_a_search_that_ends_by_a_bug_is_logged() -> None:
    driver = fed(Driver(Accounts), 0)

    def bug(topic: str, partition: int) -> None:
        raise ValueError("a bug")

    driver.broker.on_bounds = bug
    search = CompactionSearch(inside.tools(driver), ())
    assert search.ended()
    assert search.result((), driver.commit_record()) is None
    assert events(driver, "full_unusable")[-1]["finding"] == "ValueError: a bug"


def test_one_of_an_older_state_that_is_published_late_is_not_taken_for_a_newer_one() -> None:
    driver = fed(Driver(Accounts), 0)
    writer, n = compacting(driver)
    own = fed(driver, 1).take_full()
    assert own is not None
    late = writer.advance(n, -1.0, driver.clock)
    assert late is not None
    assert (late.offset > own.offset, late.first < own.first) == (True, True)
    driver.feed(OPS[0])
    driver.advance(driver.settings.snapshot.full_interval + 1)
    driver.advance(10)
    assert not events(driver, "full_noticed")
    assert late not in driver.commit_record().full_snapshots
    driver.crash()
    driver.restore()
    assert agrees(driver, [*OPS, OPS[0]])


def test_the_newest_full_snapshot_is_the_one_of_the_newest_state_and_not_the_last_on_the_topic() -> None:
    """Rule S6, for a restore."""
    driver = fed(Driver(Accounts), 0)
    writer, n = compacting(driver)
    own = fed(driver, 1).take_full()
    driver.feed(OPS[0])
    driver.commit()
    late = writer.advance(n, -1.0, driver.clock)
    assert own is not None
    assert late is not None
    assert (late.offset > own.offset, late.first < own.first) == (True, True)
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == own.offset


def test_a_base_that_is_truncated_while_it_is_read_makes_the_restore_begin_again() -> None:
    driver = fed(Driver(Accounts), 0)
    older = compacted(driver)
    fed(driver, 1)
    driver.crash()
    newer: list[FullRef] = []
    reads: list[str] = []

    def truncate(topic: str, partition: int) -> None:
        """The end is looked at, the manifest is read, and then the chunks: those are gone by then."""
        reads.append(topic)
        if reads.count(driver.names.snapshot) == 3:
            driver.broker.on_read = None
            newer.append(compacted(driver))
            driver.broker.log(topic, 0).truncate(newer[0].low)

    driver.broker.on_read = truncate
    driver.restore()
    assert newer
    assert newer[0].low > older.offset
    assert events(driver, "restore_overtaken")
    assert events(driver, "restored")[-1]["full"] == newer[0].offset
    assert agrees(driver, OPS)
