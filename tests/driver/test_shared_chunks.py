"""Full snapshots that share chunks: the same state, whatever is lost, damaged, deleted or restored (rules S7, C6)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver.test_spark_tables import InMemory, held, rows, state
from tests.driver.test_tables_on_disk import Bank, some, state_of
from tests.golden.generate import moves
from tests.golden.joined import Joined
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, events, fold
from tests.support.snapshot_records import commit_record, manifest

from statehold import Handler, Record, Table
from statehold.config.settings import Settings
from statehold.errors import TableTypeChanged, UnknownSchema, UsageError
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, EntryDecoder, FullRef, Manifest
from statehold.snapshot.full import FullUnusable, load
from statehold.snapshot.inspect import past, salvage
from statehold.snapshot.inspect.verify import PartitionVerification, verify
from statehold.snapshot.shared_chunks import ChunkSharing, KnownChunks
from statehold.snapshot.spark.io.readback import fault_of
from statehold.snapshot.store import by_url
from statehold.snapshot.store.base import Store, Stored, StoreTrouble
from statehold.snapshot.store.sink import StoreSink
from statehold.spark.relations import ChangesTable
from statehold.state.changed_keys import ChangedKeys
from statehold.state.state import State
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader, StableMemoryReader
from statehold.testing.memory.log import MemoryLog

ROOT = "file:///shared-chunks"


class Objects(Store):
    """A store in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.refuses = False
        #: seconds that a write takes
        self.slow = 0.0

    def put(self, key: str, data: bytes) -> None:
        if self.refuses:
            raise StoreTrouble(f"{key} cannot be written")
        threading.Event().wait(self.slow)
        assert key not in self.held, f"{key} is written twice"
        self.held[key] = data

    def put_new(self, key: str, data: bytes) -> None:
        if self.held.get(key, data) != data:
            raise StoreTrouble(f"{key} exists already, with another content: another process has written it")
        self.held.pop(key, None)
        self.put(key, data)

    def get(self, key: str) -> bytes:
        if key not in self.held:
            raise FileNotFoundError(key)
        return self.held[key]

    def list(self, prefix: str) -> Iterator[Stored]:
        for key in [*self.held]:
            if key.startswith(f"{prefix}/"):
                yield Stored(key, 0.0)

    def delete(self, key: str) -> None:
        self.held.pop(key, None)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    found = Objects()
    monkeypatch.setitem(by_url.REPLACED, ROOT, lambda: found)
    return found


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two chunks or so, so that a small state has some."""
    monkeypatch.setattr(StoreSink.__init__, "__defaults__", (300, lambda: False, 60.0))


WHERE = pytest.mark.parametrize("where", ["kafka", ROOT])


def new(where: str = "kafka", share: int = 3, keep: int = 2, **more: Any) -> Driver:
    given: dict[str, Any] = {
        "full_store": where,
        "share": share,
        "keep": keep,
        "chunk_bytes": 4096,
        "full_interval": 86_400.0,
    }
    values = Settings()
    return Driver(Accounts, settings=replace(values, snapshot=replace(values.snapshot, **(given | more))))


def filled(driver: Driver, count: int = 40) -> list[Op]:
    ops = [Op(f"k{i:03}", i, size=1000) for i in range(count)]
    driver.feed_all(ops)
    return ops


def feed(driver: Driver, ops: list[Op], *more: Op) -> None:
    driver.feed_all(more)
    ops += more


def topic(driver: Driver) -> MemoryLog:
    return driver.broker.log(driver.names.snapshot, 0)


def manifests(driver: Driver) -> list[Manifest]:
    found = [message.value() or b"" for message in topic(driver).committed()]
    made = [records.unpack(data) for data in found if frame.kind_of(data) == b"F"]
    return [each for each in made if isinstance(each, Manifest)]


def rows_of(driver: Driver, manifest: Manifest, objects: Objects | None = None) -> dict[str, bytes]:
    """What the chunks of a manifest hold, by a computation of its own: later rows replace earlier ones."""
    chunks: dict[int, Any] = {}
    if manifest.store:
        assert objects is not None
        folder = "/".join(manifest.store.split("/")[-3:])
        frames = []
        for number in range(manifest.segments):
            data = objects.held[f"{folder}/{number:06}"]
            while data:
                size = int.from_bytes(data[:4], "little")
                frames.append(data[4 : 4 + size])
                data = data[4 + size :]
    else:
        frames = [message.value() or b"" for message in topic(driver).committed()]
    for data in frames:
        kind, body = frame.unpack(data)
        if kind == b"C":
            full, i, _, entry = msgspec.msgpack.decode(body)
            if full == manifest.full and i < len(manifest.checksums):
                assert chunks.setdefault(i, entry) == entry, "a chunk is there twice, with another content"
    held: dict[str, bytes] = {}
    assert sorted(chunks) == list(range(len(manifest.checksums)))
    for _, (_, keys, values) in sorted(chunks.items()):
        for key, value in zip(keys, values, strict=True):
            held.pop(key, None)
            if value is not None:
                held[key] = value
    return held


def verified(driver: Driver) -> PartitionVerification:
    driver.commit()
    return verify(MemoryReader(driver.broker, lambda: False), inside.place(driver))


def faults(driver: Driver) -> list[str]:
    return [finding.text for finding in verified(driver).findings if finding.fault]


def changed(driver: Driver) -> ChangedKeys:
    found = inside.lanes(driver)[0].live().engine.state.changed
    assert found is not None
    return found


def take(driver: Driver) -> Manifest:
    assert driver.take_full() is not None
    return manifests(driver)[-1]


def test_a_full_snapshot_of_the_driver_waits_for_a_slow_store(objects: Objects) -> None:
    driver = new("file:///shared-chunks")
    filled(driver)
    objects.slow = 0.5
    assert take(driver).keys == 40


def require_three_changes(driver: Driver, first: Manifest, second: Manifest, objects: Objects, ops: list[Op]) -> None:
    """Of 40 keys one was replaced, one deleted and one added, and the second full snapshot has no more than that."""
    assert second.full == first.full
    assert second.checksums[: second.shared] == first.checksums
    assert (second.shared, len(second.checksums)) == (len(first.checksums), len(first.checksums) + 1)
    assert (second.keys, second.rows, second.first, second.through) == (40, 43, second.first, second.first)
    assert second.digest == driver.commit_record().digest
    assert rows_of(driver, second, objects).keys() == fold(ops)[0].keys()
    assert faults(driver) == []


@WHERE
def test_a_second_full_snapshot_writes_what_has_changed(where: str, objects: Objects) -> None:
    driver = new(where)
    ops = filled(driver)
    first = take(driver)
    feed(driver, ops, Op("k003", 5, size=1000), Op("k004", close=True), Op("new", 1))
    second = take(driver)
    require_three_changes(driver, first, second, objects, ops)
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == driver.commit_record().full_snapshots[0].offset
    assert agrees(driver, ops)


@WHERE
def test_a_full_snapshot_of_an_unchanged_state_is_a_manifest(where: str, objects: Objects) -> None:
    driver = new(where)
    ops = filled(driver)
    first = take(driver)
    before = topic(driver).end, dict(objects.held)
    second = take(driver)
    assert (topic(driver).end, objects.held) == (before[0] + 1, before[1])
    assert (second.checksums, second.shared) == (first.checksums, len(first.checksums))
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_its_bytes_follow_the_changes_wherever_they_are() -> None:
    driver = new(share=3)
    driver.feed_all([Op(f"account-{i:05}", i) for i in range(4_000)])
    sizes = []
    for turn in range(3):
        before = topic(driver).end
        take(driver)
        sizes.append(sum(len(message.value() or b"") for message, _ in topic(driver).entries(before)))
        driver.feed_all([Op(f"account-{(turn + 100 * i) % 4_000:05}", 1) for i in range(40)])
    assert max(sizes[1:]) < 0.1 * sizes[0], sizes


def test_off_by_default_and_without_it_each_one_is_whole() -> None:
    assert Settings().snapshot.share == 0
    driver = new(share=0)
    filled(driver)
    first, second = take(driver), take(driver)
    assert first.full != second.full
    assert inside.lanes(driver)[0].live().engine.state.changed is None


def test_as_many_share_as_the_setting_says_and_then_one_is_whole() -> None:
    driver = new(share=2)
    filled(driver)
    assert [take(driver).shared > 0 for _ in range(7)] == [False, True, True, False, True, True, False]


def test_a_restore_reads_at_most_half_as_many_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehold.snapshot.shared_chunks._FEW", 0)
    driver = new(share=100)
    ops = filled(driver, 100)
    take(driver)
    made = []
    for turn in range(12):
        feed(driver, ops, *(Op(f"k{(turn + i) % 100:03}", 1) for i in range(15)))
        made.append(take(driver))
    assert all(each.loads <= 150 for each in made)
    assert [each.shared > 0 for each in made] == [True, True, True, False] * 3
    feed(driver, ops, *(Op(f"k{i:03}", 1) for i in range(60)))
    driver.commit()
    assert changed(driver).crowded
    assert not take(driver).shared
    assert agrees(driver, ops)


def test_a_fuzzy_one_has_every_key_that_changed_since_the_one_before_began() -> None:
    """Also those that changed while it, or the one before, was written."""
    driver = new()
    ops = filled(driver)
    driver.broker.on_chunk = lambda: driver.clock.advance(0.006)
    live = inside.lanes(driver)[0].live()
    for turn in range(3):
        before = len(manifests(driver))
        live.full_snapshots.ask()
        for step in range(200):
            if len(manifests(driver)) > before and not live.full_snapshots.active:
                break
            feed(driver, ops, Op(f"k{(7 * step + turn) % 40:03}", 1, size=1000, close=step % 5 == 4))
            driver.advance(0.1)
        driver.commit()
    made = manifests(driver)
    assert [each.shared > 0 for each in made] == [False, True, True]
    assert all(each.first < each.through and each.digest == b"" for each in made[:2])
    assert faults(driver) == []
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == driver.commit_record().full_snapshots[0].offset
    assert agrees(driver, ops)


def test_a_partition_in_an_older_format_takes_whole_ones() -> None:
    class Older(Driver):
        _format = frame.SHARED - 1

    values = Settings()
    driver = Older(Accounts, settings=replace(values, snapshot=replace(values.snapshot, share=5)))
    filled(driver)
    made = [take(driver) for _ in range(3)]
    assert [each.shared for each in made] == [0, 0, 0]
    assert {each.format for each in made} == {frame.SHARED - 1}


def test_a_new_owner_begins_with_a_whole_one() -> None:
    driver = new()
    ops = filled(driver)
    first = take(driver)
    driver.crash()
    driver.restore()
    feed(driver, ops, Op("k001", 1))
    assert take(driver).full != first.full
    assert take(driver).shared


@WHERE
def test_after_an_abandoned_one_the_next_is_whole(where: str, objects: Objects) -> None:
    """Its chunks may still be on their way, with the numbers of the next ones."""
    driver = new(where)
    ops = filled(driver)
    first = take(driver)
    feed(driver, ops, *(Op(f"k{i:03}", 1, size=1000) for i in range(12)))
    driver.broker.hold_acks = objects.refuses = True
    assert driver.take_full() is None
    driver.broker.hold_acks = objects.refuses = False
    inside.lanes(driver)[0].live().full_snapshots.close()
    feed(driver, ops, Op("k020", 1))
    second = take(driver)
    assert (second.shared, second.full == first.full) == (0, False)
    third = take(driver)
    assert third.shared
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_one_that_was_begun_and_is_not_complete_is_followed_by_a_whole_one() -> None:
    """Also if nothing says so, because it failed before its first slice."""
    sharing, record = ChunkSharing(State([]), 5), commit_record(1, format=frame.SHARED, keys=1)
    ref = FullRef(0, 1, 1, 1, 0)
    assert sharing.begin(record, []) is None
    sharing.written(manifest(record, keys=1), ref)
    assert sharing.begin(record, [ref]) is not None
    assert sharing.begin(record, [ref]) is None


def test_after_one_whose_shared_chunks_were_deleted_meanwhile_the_next_is_whole() -> None:
    driver = new()
    ops = filled(driver)
    low = take(driver).low
    feed(driver, ops, Op("k001", 1, size=1000))
    driver.broker.on_chunk = lambda: topic(driver).truncate(low + 1)
    assert driver.take_full() is None
    assert "truncated while it was written" in events(driver, "full_abandoned")[-1]["cause"]
    driver.broker.on_chunk = None
    driver.advance(10.0)
    assert not take(driver).shared
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


@WHERE
def test_a_family_counts_once_and_what_its_newest_shares_stays(where: str, objects: Objects) -> None:
    """Rule C6: `keep` full snapshots remain that share nothing, so damage of one chunk leaves a state."""
    driver = new(where, share=2, keep=2)
    ops = filled(driver)
    for turn in range(8):
        feed(driver, ops, Op(f"k{turn:03}", 1, size=1000))
        take(driver)
        driver.commit()
        refs = driver.commit_record().full_snapshots
        assert len({ref.low for ref in refs}) == len(refs) == min(2, 1 + turn // 3)
        kept = {manifest.full for manifest in manifests(driver)}
        for ref in refs:
            named = next(each for each in manifests(driver) if each.first == ref.first)
            assert named.full in kept
            assert rows_of(driver, named, objects)
    assert topic(driver).start > 0
    # A chunk that the newest ones share is damaged: the family before it, and the deltas since, are the state.
    newest, before = manifests(driver)[-1], driver.commit_record().full_snapshots[1]
    assert newest.shared
    damage(driver, newest, 0, objects)
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] == before.offset
    assert agrees(driver, ops)
    assert not take(driver).shared


def damage(driver: Driver, manifest: Manifest, i: int, objects: Objects) -> None:
    if manifest.store:
        folder = "/".join(manifest.store.split("/")[-3:])
        data = bytearray(objects.held[f"{folder}/{i:06}"])
        data[len(data) // 2] ^= 1
        objects.held[f"{folder}/{i:06}"] = bytes(data)
        return
    for message, _ in topic(driver).entries():
        record = records.unpack(message.value())
        if isinstance(record, Chunk) and (record.full, record.i) == (manifest.full, i):
            wrong = bytearray(message.value() or b"")
            wrong[-1] ^= 1
            topic(driver).replace(message.offset() or 0, bytes(wrong))
            return
    raise AssertionError("no such chunk")


@WHERE
def test_orphans_of_a_family_go_with_its_last_manifest(where: str, objects: Objects) -> None:
    driver = new(where, share=1, keep=1)
    ops = filled(driver)
    folders = []
    for turn in range(6):
        feed(driver, ops, Op(f"k{turn:03}", 1, size=1000))
        take(driver)
        driver.clock.advance(7200.0)
        driver.commit()
        folders.append({key.split("/")[2] for key in objects.held})
    if where != "kafka":
        assert len(folders[-1]) <= 2
        assert manifests(driver)[-1].full in folders[-1]
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


@WHERE
def test_verification_reads_only_what_was_not_read(where: str, objects: Objects) -> None:
    driver = new(where, share=8, keep=1)
    ops = filled(driver)
    take(driver)
    driver.commit()
    starts: list[int] = []
    gets: list[str] = []
    whole, get = MemoryLog.read, objects.get

    def read(self: MemoryLog, start: int, end: int, most: int) -> Any:
        if self.topic == driver.names.snapshot:
            starts.append(start)
        return whole(self, start, end, most)

    def noted(key: str) -> bytes:
        gets.append(key)
        return get(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryLog, "read", read)
        patch.setattr(objects, "get", noted)
        feed(driver, ops, Op("k001", 1, size=1000))
        before = topic(driver).end
        made = take(driver)
        driver.commit()
    assert made.shared
    if where == "kafka":
        assert starts
        assert min(starts) >= before
    else:
        assert len(gets) == 1


def test_only_the_same_chunks_count_as_read() -> None:
    driver = new()
    ops = filled(driver)
    first, offset = take(driver), topic(driver).end - 1
    feed(driver, ops, Op("k001", 1, size=1000))
    second, record = take(driver), driver.commit_record()
    damage(driver, second, 0, Objects())
    other = msgspec.structs.replace(first, checksums=(1, *first.checksums[1:]))
    with pytest.raises(FullUnusable, match="damaged"):
        load(
            MemoryReader(driver.broker, lambda: False),
            inside.place(driver),
            record.full_snapshots[0],
            record,
            State([]),
            EntryDecoder({"balances": str}),
            after=KnownChunks(other, offset),
        )


def test_an_unread_chunk_of_the_newest_is_found_before_anything_is_deleted() -> None:
    driver = new(share=8, keep=1)
    ops = filled(driver)
    take(driver)
    driver.commit()
    start = topic(driver).start
    feed(driver, ops, Op("k001", 1, size=1000))

    def spoil() -> None:
        found = [m for m, _ in topic(driver).entries() if frame.kind_of(m.value()) == b"C"]
        wrong = bytearray(found[-1].value() or b"")
        wrong[-1] ^= 1
        topic(driver).replace(found[-1].offset() or 0, bytes(wrong))

    live = inside.lanes(driver)[0].live()
    live.full_snapshots.ask()
    while not live.full_snapshots.pending:
        driver.advance(0.2)
    spoil()
    driver.advance(10.0)
    driver.commit()
    assert events(driver, "full_unusable")
    assert topic(driver).start == start
    assert not take(driver).shared, "a family of which none is kept may be damaged"
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_a_changed_value_that_no_commit_noted_is_not_published() -> None:
    """Rule S7: the digest is computed from what is written, and from the values before of the keys noted."""
    driver = new()
    ops = filled(driver)
    take(driver)
    feed(driver, ops, Op("k001", 1), Op("k002", 1))
    driver.commit()
    next(iter(changed(driver)._tables.values())).pop("k001")
    assert driver.take_full() is None
    assert "the state in memory differs" in events(driver, "full_abandoned")[-1]["cause"]
    driver.advance(400.0)
    made = take(driver)
    assert not made.shared
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_the_local_copy_has_the_chunks_of_the_whole_family(tmp_path: Path) -> None:
    driver = new(local_dir=str(tmp_path))
    ops = filled(driver)
    for turn in range(3):
        feed(driver, ops, Op(f"k{turn:03}", 1, size=1000))
        take(driver)
        driver.commit()
        inside.lanes(driver)[0].live().full_snapshots._local_copy._writer.wait(60.0)  # type: ignore[union-attr]
    assert manifests(driver)[-1].shared
    assert len(list(tmp_path.iterdir())) == 1
    driver.crash()
    reads = []
    driver.broker.on_read = lambda name, partition: reads.append(name)
    driver.restore()
    driver.broker.on_read = None
    assert reads.count(driver.names.snapshot) == 1, "the manifest"
    assert agrees(driver, ops)


def test_a_local_copy_without_the_one_before_is_given_up(tmp_path: Path) -> None:
    driver = new(local_dir=str(tmp_path))
    ops = filled(driver)
    take(driver)
    driver.commit()
    copy = inside.lanes(driver)[0].live().full_snapshots._local_copy
    copy._writer.wait(60.0)  # type: ignore[union-attr]
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged")
    feed(driver, ops, Op("k001", 1))
    take(driver)
    driver.commit()
    copy._writer.wait(60.0)  # type: ignore[union-attr]
    assert events(driver, "local_full_failed")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"damaged"]
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_tables_on_disk(objects: Objects) -> None:
    values = Settings()
    snapshot_of = replace(values.snapshot, share=3, keep=2, full_interval=86_400.0, full_store=ROOT)
    driver = Driver(Bank, settings=replace(values, snapshot=snapshot_of))
    for turn in range(6):
        driver.feed_all(some(60, turn))
        take(driver)
        driver.commit()
    assert [each.shared > 0 for each in manifests(driver)][-3:] == [True, False, True]
    assert faults(driver) == []
    before = state_of(driver)
    driver.crash()
    driver.files.files.clear()
    driver.restore()
    assert events(driver, "restored")[-1]["full"] is not None
    assert state_of(driver) == before


def test_rows_of_joins_that_leave() -> None:
    values = Settings()
    driver = Driver(Joined, settings=replace(values, snapshot=replace(values.snapshot, share=5, keep=2)))
    for number, move in enumerate(moves(150, 800)):
        driver.feed(move, key=move.account, timestamp=1_750_000_000_000 + number * 300)
        if number % 15 == 14:
            take(driver)
    assert sum(each.shared > 0 for each in manifests(driver)) >= 4
    assert faults(driver) == []
    assert not events(driver, "full_abandoned")
    driver.crash()
    driver.restore()
    assert not events(driver, "full_unusable")


def test_earlier_ones_whose_later_transactions_are_gone_are_no_damage() -> None:
    """Their chunks remain, because a newer one shares them."""
    driver = new(share=5, keep=1)
    ops = filled(driver)
    for turn in range(3):
        for _ in range(3):
            feed(driver, ops, Op(f"k{turn:03}", 1, size=1000))
            driver.commit()
        take(driver)
        driver.commit()
    feed(driver, ops, Op("k005", 1))
    driver.commit()
    reader, place, (first, second, third) = (
        MemoryReader(driver.broker, lambda: False),
        inside.place(driver),
        manifests(driver),
    )
    for position in range(third.position("input")):
        with pytest.raises(UsageError, match=f"the oldest usable full snapshot has position {third.position('input')}"):
            past.at(reader, place, past.Point("position", position))
    for made in (first, second):
        assert past.at(reader, place, past.Point("n", made.first)).digest == made.digest
        with pytest.raises(UsageError, match="not stored any more"):
            past.at(reader, place, past.Point("n", made.first + 1))
    assert past.at(reader, place, past.LATEST).n == driver.commit_record().n
    plain, whole = verify(reader, place), verify(reader, place, everything=True)
    assert whole.compared >= plain.compared > 0, "all deltas are compared, although those of the oldest one are gone"
    assert [finding.fault for finding in whole.findings] == [False, False]
    best = salvage.newest(reader, place, "")
    assert best is not None
    assert best.commit_record.n == driver.commit_record().n
    damage(driver, third, len(third.checksums) - 1, Objects())
    best = salvage.newest(reader, place, "")
    assert best is not None
    assert best.commit_record.n == second.first, "an older state can still be salvaged"


class Move(msgspec.Struct, frozen=True):
    """`amount` 0 deletes the key."""

    table: str
    key: str
    amount: int


class TwoTables(Handler[Move]):
    first = Table(key=str, value=int)
    second = Table(key=str, value=int)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        table = self.first if move.table == "first" else self.second
        if move.amount:
            table[move.key] = move.amount
        else:
            del table[move.key]


class OneTable(Handler[Move]):
    first = Table(key=str, value=int)

    def on_record(self, record: Record[Move]) -> None: ...


class OtherKeyType(OneTable):
    second = Table(key=int, value=int)


@pytest.mark.parametrize("release", [OneTable, OtherKeyType])
def test_a_table_without_keys_may_leave_the_code_although_earlier_chunks_have_rows_of_it(
    release: type[Handler[Move]],
) -> None:
    """As it may if each full snapshot is whole."""
    values = Settings()
    driver = Driver(TwoTables, settings=replace(values, snapshot=replace(values.snapshot, share=3)))
    driver.feed_all([*(Move("first", f"k{i}", 1) for i in range(9)), Move("second", "a", 1), Move("second", "b", 2)])
    take(driver)
    driver.feed(Move("second", "b", 0))
    assert take(driver).shared
    with pytest.raises((UnknownSchema, TableTypeChanged), match="second"):
        driver.upgrade(release, crash=True)
    assert not events(driver, "full_unusable"), "the rows that remain are named, not missed by the digest"
    driver.upgrade(TwoTables)
    assert driver.table("second") == {"a": 1}
    take(driver)
    driver.feed_all([Move("second", "a", 0), Move("first", "k1", 0)])
    assert take(driver).shared
    before = dict(driver.table("first"))
    driver.upgrade(release, crash=True)
    assert driver.table("first") == before
    assert driver.commit_record().keys == len(before) == 8


def test_spark_reads_the_state_and_the_changes() -> None:
    driver = new()
    ops = filled(driver)
    for turn in range(3):
        feed(driver, ops, Op(f"k{turn:03}", 1, size=1000), Op(f"k{10 + turn:03}", close=True))
        take(driver)
    found = state(driver)
    assert found.tasks[0].work.plan.base is not None
    assert found.tasks[0].work.plan.base.manifest.shared
    assert held(rows(found)) == fold(ops)[0]
    feed(driver, ops, Op("k003", 2), Op("k013", close=True))
    driver.commit()
    assert held(rows(state(driver))) == fold(ops)[0]
    last = rows(ChangesTable(InMemory(driver, mode="changes", table="balances")))
    assert {row["key"] for row in last if row["after"] is None} >= {"k013"}
    reader = StableMemoryReader(driver.broker, lambda: False)
    base = found.tasks[0].work.plan.base
    assert fault_of(reader, inside.place(driver), base) == ""
    damage(driver, base.manifest, 0, Objects())
    assert "chunk 0 is missing or damaged" in fault_of(reader, inside.place(driver), base)


class History:
    """A random history of one partition."""

    def __init__(self, driver: Driver, source: random.Random, objects: Objects) -> None:
        self.driver, self.source, self.objects = driver, source, objects
        self.ops = filled(driver, source.randrange(1, 60))
        #: one chunk may be damaged if another family, or the beginning of the changelog, is left then
        self.may_damage = driver.settings.snapshot.keep > 1 and driver.settings.snapshot.delta_interval == "commit"
        self.damaged = False

    def feed(self) -> None:
        source = self.source
        sizes = [source.choice([0, 900]) for _ in range(source.randrange(1, 25))]
        more = [Op(f"k{source.randrange(60):02}", 1, size=size, close=source.random() < 0.2) for size in sizes]
        feed(self.driver, self.ops, *more)

    def full(self) -> None:
        self.driver.take_full()

    def begin(self) -> None:
        inside.lanes(self.driver)[0].live().full_snapshots.ask()
        self.driver.advance(0.1)

    def fail(self) -> None:
        self.objects.refuses = self.driver.broker.hold_acks = True
        self.driver.take_full()
        self.objects.refuses = self.driver.broker.hold_acks = False
        inside.lanes(self.driver)[0].live().full_snapshots.close()

    def damage(self) -> None:
        made = manifests(self.driver)
        if self.may_damage and not self.damaged and made and made[-1].checksums:
            self.damaged = True
            damage(
                self.driver,
                made[-1],
                self.source.randrange(made[-1].segments or len(made[-1].checksums)),
                self.objects,
            )

    def crash(self) -> None:
        self.driver.crash()
        self.driver.restore()
        assert agrees(self.driver, self.ops)

    def stop(self) -> None:
        self.driver.stop()
        self.driver.restore()
        assert agrees(self.driver, self.ops)

    def verify(self) -> None:
        assert faults(self.driver) == []
        for made in manifests(self.driver):
            if made.store or made.low >= topic(self.driver).start:
                rows_of(self.driver, made, self.objects)


STEPS = [
    *[History.feed] * 4,
    *[History.full] * 3,
    History.begin,
    History.fail,
    History.damage,
    History.crash,
    History.stop,
]


def run(seed: int, where: str, interval: Any) -> None:
    source, objects = random.Random(seed), Objects()
    share, keep = source.choice([1, 2, 5]), source.choice([1, 2, 3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(by_url.REPLACED, ROOT, lambda: objects)
        driver = new(where, share, keep, delta_interval=interval)
        if source.random() < 0.5:
            driver.broker.on_chunk = lambda: driver.clock.advance(source.choice([0.0, 0.006]))
        history = History(driver, source, objects)
        for _ in range(source.randrange(10, 40)):
            source.choice(STEPS)(history)
        if not history.damaged:
            history.verify()
        history.crash()


HISTORIES = given(
    seed=st.integers(0, 10**9), where=st.sampled_from(["kafka", ROOT]), interval=st.sampled_from(["commit", 0.5, "off"])
)


@settings(max_examples=12, deadline=None)
@HISTORIES
def test_random_histories_are_restored_at_each_point(seed: int, where: str, interval: Any) -> None:
    run(seed, where, interval)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=400, deadline=None)
@HISTORIES
def test_more_random_histories(seed: int, where: str, interval: Any) -> None:
    run(seed, where, interval)
