"""Compactions that write what has changed: the state of whole ones, whatever is killed, late or damaged (S7, C2)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver.test_shared_chunks import (
    ROOT,
    WHERE,
    Objects,
    faults,
    feed,
    filled,
    manifests,
    new,
    require_three_changes,
    rows_of,
    topic,
)
from tests.driver.test_spark_tables import damage
from tests.support import inside
from tests.support.compacted import CompactedDriver
from tests.support.handlers import Op, agrees, events
from tests.support.snapshot_records import NAMES, PLACE, LogReader, commit_record, manifest

from statehold.api.record import Message
from statehold.ports import FullSink
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, Manifest
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import cut, kept
from statehold.snapshot.spark.fold.sharing import Continued
from statehold.snapshot.spark.io.family import FamilyReading
from statehold.snapshot.spark.io.readback import fault_of
from statehold.snapshot.store import by_url
from statehold.snapshot.store.base import Store, StoreTrouble
from statehold.snapshot.store.files import FileStore
from statehold.testing import Driver
from statehold.testing.memory.clients import StableMemoryReader
from statehold.testing.memory.log import MemoryLog


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    found = Objects()
    monkeypatch.setitem(by_url.REPLACED, ROOT, lambda: found)
    return found


def started(where: str = "kafka", share: int = 3) -> tuple[CompactedDriver, list[Op]]:
    """A service whose worker takes no full snapshots."""
    driver = new(where, share=share)
    return CompactedDriver(driver, share, "" if where == "kafka" else where), filled(driver)


def restored(driver: Driver, ops: list[Op]) -> None:
    """A restore takes the newest full snapshot and makes the state of the input."""
    newest = max(offset for offset, record in on_topic(driver) if isinstance(record, Manifest))
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == newest
    assert agrees(driver, ops)


def on_topic(driver: Driver) -> list[tuple[int, records.Record]]:
    """The records of the snapshot topic that are not damaged, with their offsets."""
    found = []
    for message in topic(driver).committed():
        with suppress(frame.BadFrame):
            found.append((message.offset() or 0, records.unpack(message.value())))
    return found


def some(number: int, count: int = 9) -> list[Op]:
    """Changes of accounts that exist; a delta for each."""
    return [Op(f"k{(7 * number + i) % 40:03}", number, size=1000, close=i == 8) for i in range(count)]


def foreign(entry: object) -> tuple[bytes, LocatedManifest]:
    """A chunk with these bytes as its entry, and a manifest that has its checksum."""
    data = records.pack(Chunk("f", 0, -1, msgspec.Raw(msgspec.msgpack.encode(entry))))
    return data, LocatedManifest(1, manifest(commit_record(1), checksums=(frame.body_checksum(data),)))


NO_ENTRIES = pytest.mark.parametrize("entry", [7, ["t", [1], 5], ["t", ["a", "b"], [b"x"]]])


@NO_ENTRIES
def test_a_chunk_of_the_base_that_is_no_entry_is_damage(entry: object) -> None:
    data, base = foreign(entry)
    reading = FamilyReading(Continued(PLACE, base, 10))
    reading.note("t", [msgspec.msgpack.encode("a")])
    reading.read([data], base.manifest.checksums)
    assert "chunk 0 of 1 is missing or damaged: " in reading.report.finding


@NO_ENTRIES
def test_a_chunk_that_is_no_entry_is_found_when_it_is_read_back(entry: object) -> None:
    data, found = foreign(entry)
    log = MemoryLog(NAMES.snapshot, 0)
    log.append(data)
    assert fault_of(LogReader(log), PLACE, found).startswith("chunk 0: ")


def test_more_changes_than_a_task_may_hold_are_not_held() -> None:
    reading = FamilyReading(Continued(PLACE, foreign(7)[1], 2))
    reading.note("t", [b"\x01", b"\x02", b"\x03"])
    assert reading.finding == "more than 2 keys have changed"
    assert reading.sums() == {}


@WHERE
def test_a_second_compaction_writes_what_has_changed(where: str, objects: Objects) -> None:
    compacted, ops = started(where)
    driver = compacted.driver
    first = compacted.run()
    feed(driver, ops, Op("k003", 5, size=1000), Op("k004", close=True), Op("new", 1))
    second = compacted.run()
    require_three_changes(driver, first, second, objects, ops)
    restored(driver, ops)
    assert manifests(driver)[-1] == second


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=25), min_size=2, max_size=6))
def test_its_rows_are_those_of_a_whole_one(turns: list[list[tuple[int, int]]]) -> None:
    """Whatever is put, deleted and put again; by a computation of its own for each of the two."""
    compacted, ops = started(share=9)
    driver = compacted.driver
    compacted.run()
    for changes in turns:
        feed(driver, ops, *(Op(f"k{key:03}", amount, close=amount == 9) for key, amount in changes), Op("last", 1))
        made = compacted.run()
        assert made.shared
        whole = CompactedDriver(driver, 0)
        plan = whole.plan(share=0)
        written, _ = whole.fold(plan)
        beside = msgspec.structs.replace(
            made, full=written.full, checksums=tuple(written.checksums), low=written.low, shared=0
        )
        assert rows_of(driver, made) == rows_of(driver, beside)
        assert made.keys == written.keys
    restored(driver, ops)


def test_off_by_default() -> None:
    compacted, ops = started(share=0)
    compacted.run()
    feed(compacted.driver, ops, *some(1))
    assert not compacted.plan().shares
    assert compacted.run().shared == 0


def test_as_many_share_as_the_setting_says_and_then_one_is_whole() -> None:
    compacted, ops = started(share=2)
    shared = []
    for turn in range(7):
        feed(compacted.driver, ops, *some(turn))
        shared.append(compacted.run().shared > 0)
    assert shared == [False, True, True, False, True, True, False]


def test_a_restore_reads_at_most_half_as_many_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task finds that too many keys have changed; then the full snapshot is whole."""
    monkeypatch.setattr("statehold.snapshot.shared_chunks._FEW", 0)
    compacted, ops = started(share=100)
    compacted.run()
    feed(compacted.driver, ops, *(Op(f"k{i:03}", 1) for i in range(20)))
    assert compacted.run().loads == 60
    feed(compacted.driver, ops, Op("k000", 1))
    assert not compacted.plan().shares
    assert compacted.run().loads == 40
    feed(compacted.driver, ops, *(Op(f"k{i:03}", 1) for i in range(21)))
    plan = compacted.plan()
    assert plan.shares
    assert compacted.finding(plan, compacted.fold(plan)) == "more than 20 keys have changed"
    restored(compacted.driver, [*ops])


def test_an_older_format_gets_whole_ones() -> None:
    compacted, ops = started()
    compacted.run()
    feed(compacted.driver, ops, *some(1))
    plan = compacted.plan()
    assert plan.shares
    record = msgspec.structs.replace(plan.goal.commit_record, format=frame.SHARED - 1)
    from statehold.snapshot.spark.fold.sharing import sharing

    older = msgspec.structs.replace(plan, goal=plan.goal._replace(commit_record=record), shares=False)
    assert not sharing(compacted.reader(), older, 3, "").shares
    assert sharing(compacted.reader(), msgspec.structs.replace(plan, shares=False), 3, "").shares


def test_a_family_of_the_worker_is_not_continued() -> None:
    """It may continue it at the same time, with other chunks of the same numbers."""
    compacted, ops = started()
    driver = compacted.driver
    assert driver.take_full() is not None
    feed(driver, ops, *some(1))
    assert not compacted.plan().shares
    made = compacted.run()
    assert made.full != manifests(driver)[0].full
    feed(driver, ops, *some(2))
    assert driver.take_full() is not None  # the worker notices that of the compaction
    assert compacted.plan().shares
    assert driver.take_full() is not None
    assert manifests(driver)[-1].full == manifests(driver)[0].full
    feed(driver, ops, *some(3))
    assert not compacted.plan().shares, "the newest is the worker's"
    compacted.run()
    restored(driver, ops)


def test_the_base_is_of_one_transaction_and_in_the_same_place(objects: Objects) -> None:
    compacted, ops = started()
    compacted.run()
    feed(compacted.driver, ops, *some(1))
    assert CompactedDriver(compacted.driver, 3).plan().shares
    assert not CompactedDriver(compacted.driver, 3, ROOT).plan().shares
    offset, record = on_topic(compacted.driver)[-1]
    assert isinstance(record, Manifest)
    for wrong in ({"digest": b""}, {"through": record.through + 1}, {"checksums": ()}):
        forged = records.pack(msgspec.structs.replace(record, **wrong), record.format)
        topic(compacted.driver).replace(offset, forged)
        assert not compacted.plan().shares, wrong


class KilledError(Exception):
    """Stands for a kill."""


class Killed(FullSink):
    """A sink of a process that is killed after some chunks."""

    def __init__(self, sink: FullSink, after: int) -> None:
        self._sink, self._left = sink, after

    def open(self, full: str, segments: int = 0) -> str:
        return self._sink.open(full, segments)

    def seal(self) -> int:
        if not self._left:
            raise KilledError
        return self._sink.seal()

    def send(self, payload: bytes) -> None:
        if not self._left:
            raise KilledError
        self._left -= 1
        self._sink.send(payload)

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return self._sink.acknowledged(wait)

    def close(self) -> None:
        self._sink.close()


@WHERE
@pytest.mark.parametrize("after", range(4))
def test_killed_at_any_chunk_the_next_run_is_whole(where: str, after: int, objects: Objects) -> None:
    compacted, ops = started(where)
    driver = compacted.driver
    compacted.run()
    feed(driver, ops, *(Op(f"k{i:03}", i, size=1000) for i in range(9)))
    plan = compacted.plan()
    with pytest.raises(KilledError):
        compacted.fold(plan, lambda partition: Killed(compacted.sink(partition), after))
    if where != "kafka":
        compacted.sink(0).close()
    restored(driver, ops)
    feed(driver, ops, *some(2))
    wrote = any(isinstance(record, Chunk) for _, record in on_topic(driver)[-1:]) or len(objects.held) > len(
        {key for key in objects.held if key.rpartition("/")[0].endswith(manifests(driver)[0].full)}
    )
    plan = compacted.plan()
    if after and where == "kafka":
        assert wrote
        assert not plan.shares
    compacted.publish(plan, compacted.fold(plan))
    restored(driver, ops)
    assert faults(driver) == []


@WHERE
def test_killed_between_chunks_and_manifest_the_next_run_is_whole(where: str, objects: Objects) -> None:
    compacted, ops = started(where)
    compacted.run()
    feed(compacted.driver, ops, *some(1))
    plan = compacted.plan()
    assert plan.shares
    assert compacted.finding(plan, compacted.fold(plan)) == ""
    restored(compacted.driver, ops)
    assert not compacted.plan().shares
    feed(compacted.driver, ops, *some(2))
    assert compacted.run().shared == 0
    restored(compacted.driver, ops)


@WHERE
def test_a_task_that_runs_twice_writes_the_same_chunks(where: str, objects: Objects) -> None:
    compacted, ops = started(where)
    compacted.run()
    feed(compacted.driver, ops, *(Op(f"k{i:03}", i, size=1000) for i in range(30)))
    plan = compacted.plan()
    first, second = compacted.fold(plan), compacted.fold(plan)
    assert first[0].checksums == second[0].checksums
    compacted.publish(plan, second)
    restored(compacted.driver, ops)
    assert faults(compacted.driver) == []
    feed(compacted.driver, ops, *some(2))
    assert compacted.plan().shares
    compacted.run()
    restored(compacted.driver, ops)


def test_late_chunks_of_a_killed_run_do_no_harm() -> None:
    """Before the new ones: they are found, and the next full snapshot is whole. After them: no reader takes them."""
    compacted, ops = started(share=9)
    driver = compacted.driver
    base = compacted.run()
    feed(driver, ops, *some(1))
    plan, number = compacted.plan(), len(base.checksums)
    late = [
        records.pack(Chunk(base.full, number + i, -1, msgspec.Raw(msgspec.msgpack.encode(["t", [b""], [b""]]))), 7)
        for i in range(9)
    ]
    log = topic(driver)
    log.append(late[0])
    folded = compacted.fold(plan)
    assert "another one" in compacted.finding(plan, folded)
    whole = compacted.plan(share=0)
    compacted.publish(whole, compacted.fold(whole))
    restored(driver, ops)

    base = manifests(driver)[-1]
    feed(driver, ops, *some(2))
    plan = compacted.plan()
    assert plan.shares
    folded = compacted.fold(plan)
    for chunk in map(records.unpack, late):
        assert isinstance(chunk, Chunk)
        log.append(records.pack(msgspec.structs.replace(chunk, full=base.full), 7))
    made = compacted.publish(plan, folded)
    restored(driver, ops)
    assert faults(driver) == []
    assert fault_of(compacted.reader(), plan.place, made) == ""
    feed(driver, ops, *some(3))
    plan = compacted.plan()
    assert compacted.finding(plan, compacted.fold(plan)), "the number of the next chunk is taken"
    whole = compacted.plan(share=0)
    assert compacted.finding(whole, compacted.fold(whole)) == ""


def test_late_segments_of_a_killed_run_are_not_replaced(objects: Objects) -> None:
    compacted, ops = started(ROOT)
    base = compacted.run()
    feed(compacted.driver, ops, *some(1))
    plan = compacted.plan()
    held = next(iter(objects.held)).rpartition("/")[0]
    objects.held[f"{held}/{base.segments:06}"] = b"late"
    with pytest.raises(StoreTrouble, match="another process has written it"):
        compacted.fold(plan)
    assert not compacted.plan().shares


class Plain(Objects):
    """A store that cannot write a new object only."""

    put_new = Store.put_new


@pytest.mark.parametrize("kind", ["file", "plain"])
def test_a_store_keeps_what_exists(kind: str, tmp_path: Path) -> None:
    store: Store = FileStore(str(tmp_path)) if kind == "file" else Plain()
    for _ in range(2):
        store.put_new("a/b/000001", b"first")
    with pytest.raises(StoreTrouble, match="exists already, with another content"):
        store.put_new("a/b/000001", b"second")
    assert store.get("a/b/000001") == b"first"
    assert [each.key for each in store.list("a/b")] == ["a/b/000001"]


def test_a_damaged_family_is_left_for_the_one_before() -> None:
    """A chunk that all its members share: the next full snapshot is whole, from an older one."""
    compacted, ops = started(share=2)
    driver = compacted.driver
    for turn in range(5):  # a family of three, and two of the next one
        feed(driver, ops, *some(turn))
        compacted.run()
    feed(driver, ops, *some(5))
    newest = manifests(driver)[-1]
    damage(
        topic(driver),
        next(offset for offset, each in on_topic(driver) if isinstance(each, Chunk) and each.full == newest.full),
    )
    damaged: list[int] = []
    plan = compacted.plan()
    folded = compacted.fold(plan)
    while finding := compacted.finding(plan, folded):
        assert plan.base is not None
        assert finding.startswith(f"full@{plan.base.offset}: ")
        damaged.append(plan.base.offset)
        plan = compacted.plan(damaged, share=0)
        folded = compacted.fold(plan)
    assert len(damaged) == 2, "both members"
    assert not compacted.plan(damaged[:1]).shares, "the one before may have the same damage"
    compacted.publish(plan, folded)
    restored(driver, ops)


def test_a_missing_change_is_found() -> None:
    """A delta without a key that changed has another digest than its commit record."""
    compacted, ops = started()
    compacted.run()
    feed(compacted.driver, ops, Op("k001", 1), Op("k002", close=True), Op("new", 5))
    plan = compacted.plan()
    good = plan.goal.commit_record
    for wrong in ({"digest": bytes(16)}, {"keys": good.keys + 1}):
        record = msgspec.structs.replace(good, **wrong)
        other = msgspec.structs.replace(plan, goal=plan.goal._replace(commit_record=record))
        assert "the commit record" in compacted.finding(other, compacted.fold(other))
    assert compacted.finding(plan, compacted.fold(plan)) == ""


@WHERE
def test_truncation_keeps_what_the_newest_of_a_family_shares(where: str, objects: Objects) -> None:
    compacted, ops = started(where, share=2)
    found: list[LocatedManifest] = []
    for turn in range(5):
        feed(compacted.driver, ops, *some(turn))
        plan = compacted.plan()
        found.insert(0, compacted.publish(plan, compacted.fold(plan)))
    assert [each.offset for each in kept(found, 3)] == [found[0].offset, found[2].offset]
    first = cut(found, 1)
    assert first is not None
    begin = found[1].manifest.low if where == "kafka" else found[1].offset
    assert (first.full, first.increment) == (begin, found[0].manifest.increment)


class CountingReader(StableMemoryReader):
    """Counts the records of the snapshot topic that it hands over."""

    seen = 0

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        for batch in super().read(topic, partition, start, end, most):
            CountingReader.seen += len(batch) * topic.endswith(".snapshot")
            yield batch


def test_planning_costs_as_much_as_the_members_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no chunks but those that lead from one manifest to the one before."""
    compacted, ops = started(share=9)
    feed(compacted.driver, ops, *(Op(f"more{i:03}", i, size=1000) for i in range(40)))
    compacted.run()
    for turn in range(4):
        feed(compacted.driver, ops, *(Op(f"k{i:03}", turn, size=1000) for i in range(4)))
        compacted.run()
    feed(compacted.driver, ops, *some(9))
    monkeypatch.setattr(compacted, "reader", lambda: CountingReader(compacted.driver.broker, lambda: False))
    plan = compacted.plan()
    assert plan.shares
    assert len(plan.full_snapshots) == 5
    assert CountingReader.seen <= 5 * 6 < len(on_topic(compacted.driver))
    whole = compacted.plan(damaged=[0])
    assert whole.full_snapshots == plan.full_snapshots


def test_many_turns_with_restores_between() -> None:
    compacted, ops = started(share=4)
    driver, rng = compacted.driver, random.Random(5)
    for turn in range(16):
        feed(driver, ops, *some(rng.randrange(40), rng.randrange(1, 12)))
        compacted.run()
        if turn % 3 == 2:
            restored(driver, ops)
        assert inside.lanes(driver)
    assert faults(driver) == []
