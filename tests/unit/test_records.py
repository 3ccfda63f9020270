"""The records of statehold's topics: a round trip of each, and rejected ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshot_records import commit_record, replaced

from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import (
    Chunk,
    CommitRecord,
    Effect,
    EntryDecoder,
    FullRef,
    Header,
    Manifest,
    Part,
    Record,
    StateReplacement,
    Writer,
)
from statehold.state.partition_table import Changes

numbers = st.integers(0, 2**59)
texts = st.text(max_size=20)
raws = st.lists(st.binary(max_size=10), max_size=3).map(lambda v: msgspec.Raw(msgspec.msgpack.encode(v)))
references = st.builds(FullRef, numbers, numbers, numbers, numbers, numbers)
writers = st.builds(Writer, texts, texts, st.integers(0, 2**31), texts, st.integers(1, 9))
effects = st.builds(Effect, texts, texts, numbers, numbers, numbers, st.binary(max_size=9))
any_record = st.one_of(
    st.builds(Header, numbers, texts, texts, numbers),
    st.builds(
        StateReplacement,
        n=numbers,
        attempt=texts,
        lineage=texts,
        base=st.none() | references,
        digest=st.binary(min_size=16, max_size=16),
        positions=st.dictionaries(texts, numbers, max_size=2),
        partitions=numbers,
        tool=texts,
        who=texts,
        why=texts,
        notes=st.dictionaries(texts, texts, max_size=2),
    ),
    st.builds(Part, numbers, texts, numbers, st.lists(raws, max_size=3)),
    st.builds(
        commit_record,
        numbers,
        texts,
        texts,
        full_snapshots=st.lists(references, max_size=2).map(tuple),
        effects=st.lists(effects, max_size=2).map(tuple),
        writer=writers,
        topic_ids=st.dictionaries(texts, texts, max_size=2),
        digest=st.binary(min_size=16, max_size=16),
    ),
    st.builds(Chunk, texts, numbers, st.integers(-1, 2**40), raws),
    st.builds(
        Manifest,
        full=texts,
        service=texts,
        partition=numbers,
        partitions=numbers,
        lineage=texts,
        first=numbers,
        through=numbers,
        positions=st.dictionaries(texts, numbers, max_size=2),
        increment=numbers,
        low=st.integers(-1, 2**40),
        checksums=st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
        writer=writers,
    ),
)


@given(any_record)
def test_every_record_comes_back(record: Record) -> None:
    assert records.unpack(records.pack(record)) == record


def test_an_unknown_kind_and_a_wrong_body_are_rejected() -> None:
    with pytest.raises(frame.BadFrame, match="unknown kind b'Z'"):
        records.unpack(frame.pack(b"Z", b"\xc0"))
    with pytest.raises(frame.BadFrame, match="kind b'M'"):
        records.unpack(frame.pack(b"M", msgspec.msgpack.encode({"n": "seven"})))
    with pytest.raises(frame.BadFrame):
        records.unpack(None)


@given(st.binary(max_size=60), st.sampled_from([b"H", b"P", b"M", b"C", b"F"]))
def test_a_frame_around_garbage_raises_nothing_else(body: bytes, kind: bytes) -> None:
    try:
        record = records.unpack(frame.pack(kind, body))
    except frame.BadFrame:
        return
    assert isinstance(record, Header | Part | CommitRecord | Chunk | Manifest)


def test_a_newer_writer_may_add_fields() -> None:
    newer = msgspec.to_builtins(commit_record(3)) | {"invented": 7}
    newer["digest"] = commit_record(3).digest
    assert records.unpack(frame.pack(b"M", msgspec.msgpack.encode(newer))) == commit_record(3)


def test_what_must_be_equal_to_keep_memory() -> None:
    same = commit_record(7)
    assert same.identity == replaced(same, outputs=9, time=5).identity
    changes: list[dict[str, Any]] = [{"n": 8}, {"attempt": "b"}, {"positions": {"input": 1}}, {"digest": b"\1" * 16}]
    for change in changes:
        assert replaced(same, **change).identity != same.identity


keys: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(-(2**63), 2**63),
    bytes: st.binary(max_size=5),
    tuple[str, int]: st.tuples(st.text(max_size=3), st.integers(0, 99)),
}


@given(st.sampled_from(list(keys)), st.data())
def test_entries_come_back_with_their_key_types(kind: Any, data: st.DataObject) -> None:
    pairs = data.draw(st.dictionaries(keys[kind], st.none() | st.binary(max_size=9), max_size=5))
    changes = Changes("table", list(pairs), list(pairs.values()))
    back = EntryDecoder({"table": kind}).decode(records.entry(changes))
    assert (back.table, back.keys, back.values) == (changes.table, changes.keys, changes.values)


def test_an_entry_of_another_table_or_key_type_is_named() -> None:
    raw = records.entry(Changes("table", ["a"], [b"1"]))
    with pytest.raises(frame.BadFrame, match="holds table 'table', this code declares: other"):
        EntryDecoder({"other": str}).decode(raw)
    with pytest.raises(frame.BadFrame, match="Expected `int`, got `str`"):
        EntryDecoder({"table": int}).decode(raw)
    short = msgspec.Raw(msgspec.msgpack.encode(("table", ["a", "b"], [b"1"])))
    with pytest.raises(frame.BadFrame, match="2 keys, 1 values"):
        EntryDecoder({"table": str}).decode(short)
