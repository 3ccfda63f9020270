"""Full snapshots, writer and loader alone: fuzzy slices, keys that come and go, damaged chunks (A5, A9, S1-S5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshot_records import NAMES, PLACE, LogReader, LogSink, commit_record, replaced

from statehold import Table
from statehold.bound.table import bind
from statehold.snapshot import full
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Chunk, CommitRecord, EntryDecoder, FullRef, Manifest, split
from statehold.snapshot.full import FullUnusable, FullWriter, load
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.state.state import State
from statehold.testing.memory.log import MemoryLog


def new_state() -> State:
    table = Table(key=int, value=bytes)
    table.__set_name__(object, "t")
    return State([bind(table)])


class Owner:
    """A state, its deltas, and a full that is written a chunk at a time."""

    def __init__(self, keys: int = 12, size: int = 600) -> None:
        self.state, self.log = self.new_state(), MemoryLog(NAMES.snapshot, 0)
        self.sink = LogSink(self.log)
        self.n = 0
        self.commit_records: list[CommitRecord] = []
        self.deltas: list[tuple[Changes, ...]] = []
        self.clock = [0.0]
        self.commit({key: bytes([key % 256]) * size for key in range(keys)})

    def new_state(self) -> State:
        return new_state()

    def commit(self, writes: dict[int, bytes | None]) -> None:
        table = self.state.tables["t"]
        for key, value in writes.items():
            if value is None:
                table.delete(key)
            else:
                table.put(key, value)
        frozen = self.state.freeze()
        self.state.commit(frozen, delta=True)
        self.n += 1
        self.deltas.append(frozen.changes)
        self.commit_records.append(commit_record(self.n, digest=digest.to_bytes(frozen.digest), keys=frozen.keys))

    def writer(self, chunk_bytes: int = 700) -> FullWriter:
        return FullWriter(PLACE, self.state, self.commit_records[-1], 5, -1, self.sink, chunk_bytes)

    def tick(self) -> float:
        """One slice lasts one chunk."""
        self.clock[0] += 1.0
        return self.clock[0]

    def restored(self, ref: FullRef) -> State:
        """The full, and the deltas after its first transaction."""
        state = new_state()
        load(LogReader(self.log), PLACE, ref, self.commit_records[-1], state, EntryDecoder({"t": int}))
        for changes in self.deltas[ref.first :]:
            for change in changes:
                state.load(change)
        state.loaded()
        return state


def finish(owner: Owner, writer: FullWriter) -> FullRef:
    while (ref := writer.advance(owner.n, 1.5, owner.tick)) is None:
        pass
    return ref


def complete(owner: Owner) -> FullRef:
    ref = owner.writer().advance(owner.n, -1.0, owner.tick)
    assert ref is not None
    return ref


def test_a_full_snapshot_within_one_boundary_is_the_state_itself() -> None:
    owner = Owner()
    ref = complete(owner)
    assert (ref.first, ref.through, ref.increment) == (1, 1, 5)
    assert (ref.low, ref.offset) == (0, owner.log.end - 1)
    manifest = records.unpack([*owner.log.committed()][-1].value())
    assert isinstance(manifest, Manifest)
    assert (manifest.keys, len(manifest.checksums)) == (12, 12)
    assert manifest.digest == owner.commit_records[-1].digest
    assert owner.restored(ref).digest == owner.state.digest


def test_a_key_that_was_deleted_and_comes_back_is_written_once() -> None:
    owner = Owner()
    owner.commit({3: None})
    owner.commit({3: b"back"})
    writer = owner.writer()
    ref = finish(owner, writer)
    assert writer.keys == 12
    assert owner.restored(ref).digest == owner.state.digest


def test_a_slice_keeps_to_its_budget() -> None:
    owner = Owner()
    writer = owner.writer()
    assert writer.advance(owner.n, 1.5, owner.tick) is None
    assert owner.log.end == 1


def test_a_full_snapshot_ends_however_many_keys_are_added_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S2: its keys are those of its first slice, the others come from deltas."""
    monkeypatch.setattr(full, "CHUNK_KEYS", 1)
    owner = Owner()
    writer = owner.writer()
    while (ref := writer.advance(owner.n, 1.5, owner.tick)) is None:
        assert owner.n < 100
        owner.commit({2 * owner.n + born: b"more" for born in (100, 101)})
    assert writer.keys == 12
    assert owner.restored(ref).digest == owner.state.digest


def test_nothing_is_complete_before_all_is_acknowledged() -> None:
    owner = Owner()
    writer, owner.sink.acknowledge = owner.writer(), False
    assert writer.advance(owner.n, -1.0, owner.tick) is None
    assert not any(isinstance(records.unpack(m.value()), Manifest) for m in owner.log.committed())
    owner.sink.acknowledge = True
    assert writer.advance(owner.n, -1.0, owner.tick) is not None


def test_a5_a_fuzzy_full_snapshot_says_so_and_needs_a_delta_at_or_after_its_last_slice() -> None:
    owner = Owner()
    writer = owner.writer()
    while (ref := writer.advance(owner.n, 1.5, owner.tick)) is None:
        owner.commit({owner.n: b"new", 11: b"%d" % owner.n})
    assert ref.first < ref.through
    manifest = records.unpack([*owner.log.committed()][-1].value())
    assert isinstance(manifest, Manifest)
    assert manifest.digest == b""
    assert owner.restored(ref).digest == owner.state.digest
    for newest, text in (
        (replaced(owner.commit_records[-1], last_delta=ref.through - 1), "needs a delta at or after"),
        (replaced(owner.commit_records[-1], n=ref.through - 1), "goes through transaction"),
        (replaced(owner.commit_records[-1], lineage="other"), "its state generation is l"),
    ):
        with pytest.raises(FullUnusable, match=text):
            load(LogReader(owner.log), PLACE, ref, newest, new_state(), EntryDecoder({"t": int}))


changes = st.dictionaries(st.integers(0, 15), st.none() | st.binary(min_size=1, max_size=900), max_size=4)


@given(st.lists(st.tuples(changes, st.booleans()), max_size=30))
def test_a9_whatever_is_written_between_the_slices_the_restore_is_exact(
    steps: list[tuple[dict[int, bytes | None], bool]],
) -> None:
    """Keys deleted before their slice, born after the start, reborn; writes that are rolled back."""
    owner = Owner()
    writer = owner.writer()
    ref = None
    for writes, aborted in steps:
        if aborted:
            table = owner.state.tables["t"]
            for key, value in writes.items():
                table.delete(key) if value is None else table.put(key, value)
            if ref is None:
                ref = writer.advance(owner.n, 1.5, owner.tick)
            owner.state.rollback()
            continue
        owner.commit(writes)
        if ref is None:
            ref = writer.advance(owner.n, 1.5, owner.tick)
    restored = owner.restored(ref or finish(owner, writer))
    assert restored.digest == owner.state.digest
    assert restored.tables["t"].stored == owner.state.tables["t"].stored


def test_a9_a_deleted_key_does_not_hide_its_neighbour() -> None:
    owner = Owner(keys=3)
    writer = owner.writer()
    writer.advance(owner.n, 1.5, owner.tick)
    owner.commit({0: None})
    owner.commit({0: b"again"})
    assert owner.restored(finish(owner, writer)).digest == owner.state.digest


Damage = Callable[[Owner, FullRef], None]


def flipped(owner: Owner, offset: int) -> None:
    (message,) = owner.log.committed(offset, offset + 1)
    data = bytearray(message.value() or b"")
    data[-1] ^= 1
    owner.log.replace(offset, bytes(data))


def of_another_full(owner: Owner, ref: FullRef) -> None:
    (message,) = owner.log.committed(ref.low + 1, ref.low + 2)
    chunk = records.unpack(message.value())
    assert isinstance(chunk, Chunk)
    owner.log.replace(ref.low + 1, records.pack(Chunk("stranger", chunk.i, -1, chunk.entry)))


def changed(owner: Owner, ref: FullRef) -> None:
    entry = records.entry(Changes("t", [1], [b"forged"]))
    (message,) = owner.log.committed(ref.low + 1, ref.low + 2)
    chunk = records.unpack(message.value())
    assert isinstance(chunk, Chunk)
    owner.log.replace(ref.low + 1, records.pack(Chunk(chunk.full, chunk.i, -1, entry)))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a bit flipped": (lambda o, r: flipped(o, r.low + 1), "damaged: "),
    "a chunk lost": (lambda o, r: o.log.abort_record(r.low + 1), "chunk 1 of 12 is missing or damaged"),
    "the last chunk lost": (lambda o, r: o.log.abort_record(r.offset - 1), "11 of 12 chunks are there"),
    "a chunk of another full": (of_another_full, "chunk 1 of 12 is missing or damaged"),
    "a chunk with other content": (changed, "chunk 1 of 12 is missing or damaged"),
    "the manifest lost": (lambda o, r: o.log.abort_record(r.offset), "there is no manifest at offset 12"),
    "the manifest damaged": (lambda o, r: flipped(o, r.offset), "damaged"),
    "the first chunk truncated": (lambda o, r: o.log.truncate(1), "its records are gone"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_full_snapshot_that_is_not_whole_is_unusable_and_says_why(name: str) -> None:
    owner = Owner()
    ref = complete(owner)
    damage, text = DAMAGES[name]
    damage(owner, ref)
    with pytest.raises(FullUnusable, match=text):
        owner.restored(ref)


def test_duplicate_and_foreign_chunks_are_skipped() -> None:
    owner, twice = Owner(), MemoryLog(NAMES.snapshot, 0)
    complete(owner)
    for message in owner.log.committed():
        record = records.unpack(message.value())
        twice.append(message.value())
        if isinstance(record, Chunk):
            twice.append(message.value())
            twice.append(records.pack(Chunk("stranger", record.i, -1, record.entry)))
    owner.log = twice
    ref = FullRef(0, twice.end - 1, 1, 1, 5)
    assert owner.restored(ref).digest == owner.state.digest


def test_the_full_snapshot_of_another_service_or_partition_is_rejected() -> None:
    owner = Owner()
    ref = complete(owner)
    for place in (
        PLACE.__class__(NAMES, 1, 4, {}),
        PLACE.__class__(NAMES, 0, 8, {}),
        PLACE.__class__(type(NAMES)("other", "input"), 0, 4, {}),
    ):
        reader = LogReader(owner.log)
        reader._logs[place.names.snapshot] = owner.log
        with pytest.raises(FullUnusable, match="it belongs to 'service' partition 0 of 4"):
            load(reader, place, ref, owner.commit_records[-1], new_state(), EntryDecoder({"t": int}))


def test_an_empty_state_has_a_full_snapshot_without_chunks() -> None:
    owner = Owner(keys=0)
    ref = complete(owner)
    assert (ref.low, ref.offset) == (0, 0)
    assert owner.restored(ref).keys == 0


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 200))
def test_split_loses_nothing_and_keeps_to_the_limit(values: list[bytes], limit: int) -> None:
    pieces = list(split(Changes("t", list(range(len(values))), [*values]), limit))
    assert [value for piece in pieces for value in piece.values] == values
    assert all(len(piece.keys) == 1 or records._size(piece) <= limit for piece in pieces)


@pytest.mark.parametrize("key", [1.5, "1", True, None])
def test_a_key_that_a_restore_would_not_load_as_it_is_ends_the_full_snapshot(key: object) -> None:
    owner = Owner()
    table = owner.state.tables["t"]
    table.stored.pop(1)
    table.stored[key] = b"planted"
    table.order.append(key)
    writer = owner.writer()
    with pytest.raises(FullUnusable, match="table 't'"):
        finish(owner, writer)
    sent = [records.unpack(message.value()) for batch in owner.log.read(0, owner.log.end, 100) for message in batch]
    assert not any(isinstance(record, Manifest) for record in sent)


@pytest.mark.parametrize("written", [0, 1])
def test_keys_that_are_deleted_before_their_chunk_do_not_end_the_full_snapshot(written: int) -> None:
    """The chunks written before are of one boundary, and the digest of that boundary has other keys, too."""
    count = 3 * full.CHUNK_KEYS
    owner = Owner(keys=count, size=1)
    writer = owner.writer(chunk_bytes=10**6)
    for _ in range(written):
        assert writer.advance(owner.n, 1.5, owner.tick) is None
    owner.commit(dict.fromkeys(range(full.CHUNK_KEYS * written, count)))
    ref = finish(owner, writer)
    assert (ref.first, ref.through) == (1, 2)
    assert owner.restored(ref).keys == full.CHUNK_KEYS * written


def test_a_state_that_differs_from_its_digest_ends_the_full_snapshot() -> None:
    owner = Owner()
    owner.state.tables["t"].stored[3] = b"planted"
    writer = owner.writer()
    with pytest.raises(FullUnusable, match="the state in memory differs from the committed one"):
        writer.advance(owner.n, -1.0, owner.tick)
