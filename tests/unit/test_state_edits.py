"""Edits of a state and its deal to other partitions: pure, on tables alone."""

from __future__ import annotations

import zlib
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold import Handler, Reference, Table
from statehold.admin.repair.rebase import unrepeatable
from statehold.admin.state.key_layout import KeyLayout
from statehold.admin.state.spool import Spool
from statehold.bound.attributes import table_types
from statehold.bound.handler import new_state
from statehold.bound.table import bind
from statehold.common.partitioner import crc32, murmur2
from statehold.errors import ToolRefused, UsageError
from statehold.snapshot.state_edits import Counts, Edits, Patch, drop, read_patches
from statehold.state.partition_table import Changes
from statehold.state.state import State


class Balance(msgspec.Struct, frozen=True):
    total: int


class Older(msgspec.Struct):
    total: str


def upgraded(old: Older) -> Balance:
    return Balance(int(old.total))


class Tables:
    plain = Table(key=str, value=int)
    pairs = Table(key=tuple[str, int], value=Balance)
    second = Table(key=str, value=Balance, version=2, upcasters={1: upgraded})


TABLES = {name: bind(table) for name, table in vars(Tables).items() if isinstance(table, Table)}


def state(**tables: dict[Any, Any]) -> State:
    made = State([table.fresh() for table in TABLES.values()])
    for name, values in tables.items():
        encode = made.tables[name].encode
        made.load(Changes(name, list(values), [v if isinstance(v, bytes) else encode(v) for v in values.values()]))
    made.loaded()
    return made


def values(of: State, table: str) -> dict[Any, Any]:
    return dict(of.tables[table].items())


def edited(edits: Edits, old: State, partition: int = 0) -> tuple[State, Counts]:
    new = state()
    return new, edits.apply(partition, old, new)


def test_a_function_changes_deletes_and_leaves_the_other_tables_alone() -> None:
    def change(key: str, old: int) -> int | None:
        return {"a": old + 1, "b": None}.get(key, old)

    old = state(plain={"a": 1, "b": 2, "c": 3}, pairs={("x", 1): Balance(9)})
    new, counts = edited(Edits({"plain": change}, [], TABLES), old)
    assert values(new, "plain") == {"a": 2, "c": 3}
    assert new.tables["pairs"].stored == old.tables["pairs"].stored
    assert counts == Counts(before=4, after=3, changed=1, added=0, deleted=1)
    assert new.digest == state(plain={"a": 2, "c": 3}, pairs={("x", 1): Balance(9)}).digest


def test_the_annotation_determines_how_old_bytes_are_read() -> None:
    def change(key: str, old: Older) -> Balance:
        return Balance(int(old.total) * 2)

    def current(key: str, old: Balance) -> Balance:
        return Balance(old.total * 2)

    old = state(second={"a": msgspec.msgpack.encode(Older("21"))})
    for function in (change, current):
        new, _ = edited(Edits({"second": function}, [], TABLES), old)
        assert values(new, "second") == {"a": Balance(42)}
        assert new.tables["second"].stored["a"][:2] == b"\xc1\x02"


def test_patches_come_before_functions_and_a_new_key_needs_its_partition() -> None:
    patches = [
        Patch("plain", "a", 7),
        Patch("plain", "b", None),
        Patch("plain", "new", 5, 1),
        Patch("plain", "lost", 5),
        Patch("pairs", ["x", 1], {"total": 3}),
    ]
    edits = Edits({"plain": lambda key, old: old + 1}, patches, TABLES)
    new, counts = edited(edits, state(plain={"a": 1, "b": 2, "c": 3}, pairs={("x", 1): Balance(9)}))
    assert (values(new, "plain"), values(new, "pairs")) == ({"a": 7, "c": 4}, {("x", 1): Balance(3)})
    assert (counts.changed, counts.deleted, counts.added) == (3, 1, 0)
    assert edits.unused() == [patches[2], patches[3]]
    new, counts = edited(edits, state(plain={"d": 1}), partition=1)
    assert values(new, "plain") == {"d": 2, "new": 5}
    assert edits.unused() == [patches[3]]


@pytest.mark.parametrize(
    ("functions", "patches", "text"),
    [
        ({"none": print}, [], "no table 'none'; there are: pairs, plain, second"),
        ({"plain": lambda key: key}, [], r"takes \(key, old\)"),
        ({}, [Patch("plain", 1, 1)], r"patch of table 'plain', key 1: Expected `str`, got `int`"),
        ({}, [Patch("pairs", ["x", 1], {})], "missing required field `total`"),
    ],
)
def test_what_does_not_fit_the_tables_is_rejected(functions: Any, patches: list[Patch], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Edits(functions, patches, TABLES)


def test_a_function_that_raises_is_named_with_its_key() -> None:
    def fails(key: str, old: int) -> int:
        return old // 0

    with pytest.raises(UsageError, match="table 'plain', key 'a': fails raised ZeroDivisionError"):
        edited(Edits({"plain": fails}, [], TABLES), state(plain={"a": 1}))


def test_patch_files_are_json_lines() -> None:
    lines = ['{"table": "plain", "key": "a", "value": 1}', "", '{"table": "plain", "key": "b", "value": null}']
    assert read_patches(lines, "f") == [Patch("plain", "a", 1), Patch("plain", "b", None)]
    with pytest.raises(UsageError, match=r"f:2: .* write one a line"):
        read_patches(["", '{"table": "plain", "key": "a"}'], "f")


KEYS = {"pairs": lambda key, value: key[0]}


def redistributed(names: list[str], before: int) -> list[State]:
    where = [[name for name in names if murmur2(name.encode(), before) == p] for p in range(before)]
    return [state(plain=dict.fromkeys(own, 1), pairs={(n, 2): Balance(3) for n in own}) for own in where]


def deal_all(layout: KeyLayout, old: list[State]) -> None:
    for here, one in enumerate(old):
        list(layout.redistribute(one, here, len(old), 2))


@given(st.lists(st.text(max_size=8), unique=True, max_size=30), st.integers(1, 5), st.integers(1, 9))
def test_every_key_goes_where_its_records_go_and_none_is_lost(names: list[str], before: int, after: int) -> None:
    old, spool = redistributed(names, before), Spool(after)
    with closing(spool):
        for here, one in enumerate(old):
            for there, changes in KeyLayout(murmur2, KEYS, TABLES).redistribute(one, here, before, after):
                spool.add(there, changes)
        new = [spool.load(partition, state()) for partition in range(after)]
    for partition, each in enumerate(new):
        assert all(murmur2(key.encode(), after) == partition for key in each.tables["plain"].stored)
        assert {key[0] for key in each.tables["pairs"].stored} == set(each.tables["plain"].stored)
    assert sum(each.keys for each in new) == 2 * len(names)
    assert sum(each.digest for each in new) % 2**128 == sum(each.digest for each in old) % 2**128


def test_a_layout_that_is_not_the_producers_is_noticed() -> None:
    old = redistributed([f"key-{i}" for i in range(20)], 3)
    with pytest.raises(ToolRefused, match=r"table 'plain', key 'key-\d+' is in partition \d"):
        deal_all(KeyLayout(crc32, KEYS, TABLES), old)
    with pytest.raises(ToolRefused, match=r"table 'pairs', key \('key-\d+', 2\)"):
        deal_all(KeyLayout(murmur2, {"pairs": lambda key, value: "all"}, TABLES), old)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "table 'pairs'.* keys have type tuple.* --key pairs=MODULE:FUNCTION"),
        (KEYS | {"none": lambda key, value: key}, "no table 'none'"),
    ],
)
def test_a_table_whose_key_is_not_the_record_key_needs_a_function(keys: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        KeyLayout(murmur2, keys, TABLES)


def test_a_key_function_that_returns_none_is_rejected() -> None:
    layout = KeyLayout(murmur2, {"pairs": lambda key, value: None}, TABLES)  # type: ignore[dict-item, return-value]
    with pytest.raises(UsageError, match="None is not a record key"):
        deal_all(layout, [state(pairs={("a", 1): Balance(1)})])


def test_crc32_is_that_of_zlib() -> None:
    assert crc32(b"key", 7) == zlib.crc32(b"key") % 7


class Priced(Handler[str]):
    prices = Reference("prices", key=str, value=int)


def test_records_that_saw_reference_data_are_not_handled_here_without_it() -> None:
    assert "Priced reads reference data" in unrepeatable(Priced)
    assert unrepeatable(Handler) == ""


class Expiring(Handler[bytes]):
    sums = Table(key=str, value=int, ttl=60)
    other = Table(key=str, value=int)

    def on_record(self, record: Any) -> None: ...


def test_a_dropped_table_leaves_nothing_that_its_removal_would_miss() -> None:
    """The times at which its keys expire are a table of their own."""
    tables = new_state(Expiring, traced=False, track_delta=False).tables
    old, new = (new_state(Expiring, traced=False, track_delta=False) for _ in range(2))
    for name in tables:
        if name != "statehold.clock":
            old.load(Changes(name, ["ann"], [msgspec.msgpack.encode(5)]))
    old.loaded()
    edits = Edits({"sums": drop}, [], tables)
    counts = edits.apply(0, old, new)
    assert new.used == ["other"]
    assert (counts.deleted, counts.after) == (2, 1)
    assert edits.read_types(table_types(Expiring)).keys() == {"other"}
    assert edits.kept_types({"sums": "", "other": ""}) == {"other": ""}
