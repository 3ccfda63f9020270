"""Tables against a dict that is copied at every commit."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from statehold import Table
from statehold.bound.table import bind
from statehold.errors import MutatedInPlace, UsageError
from statehold.state.partition_table import TracedTable

KEYS = st.integers(0, 9)


def bound(*, traced: bool = False, **arguments: Any) -> Any:
    table: Table[Any, Any] = Table(**{"key": int, "value": int, **arguments})
    table.__set_name__(object, "table")
    return bind(table, traced=traced)


class TableMachine(RuleBasedStateMachine):
    """A plain table; frozen writes and open ones at the same time, as with a commit under way."""

    sorted = False
    traced = False

    def __init__(self) -> None:
        super().__init__()
        self.table = bound(sorted=self.sorted, traced=self.traced)
        self.open: dict[int, int] = {}
        self.stored: dict[int, int] = {}
        self.frozen: dict[int, int] | None = None

    @rule(key=KEYS, value=st.integers(-9, 9))
    def put(self, key: int, value: int) -> None:
        self.table[key] = value
        self.open[key] = value

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        self.table.delete(key)
        self.open.pop(key, None)

    @rule(key=KEYS)
    def del_statement(self, key: int) -> None:
        if key in self.open:
            del self.table[key]
            del self.open[key]
        else:
            with pytest.raises(KeyError):
                del self.table[key]

    @rule(key=KEYS)
    def read(self, key: int) -> None:
        assert self.table.get(key) == self.open.get(key)
        assert self.table.get(key, "none") == self.open.get(key, "none")
        assert (key in self.table) == (key in self.open)
        if key in self.open:
            assert self.table[key] == self.open[key]
        else:
            with pytest.raises(KeyError):
                self.table[key]

    @rule()
    def freeze(self) -> None:
        if self.frozen is None:
            if isinstance(self.table, TracedTable):
                self.table.check_in_place()
            self.table.freeze()
            self.frozen = dict(self.open)

    @rule()
    def commit(self) -> None:
        if self.frozen is not None:
            self.table.commit()
            self.stored, self.frozen = self.frozen, None

    @rule()
    def rollback(self) -> None:
        self.table.rollback()
        self.open, self.frozen = dict(self.stored), None

    @rule()
    def restart(self) -> None:
        """A new owner loads what is committed."""
        stored = self.table.stored
        self.table = bound(sorted=self.sorted, traced=self.traced)
        self.table.load(list(stored), list(stored.values()))
        self.table.loaded()
        self.open, self.frozen = dict(self.stored), None

    @invariant()
    def looks_like_the_dict(self) -> None:
        assert len(self.table) == len(self.open)
        assert sorted(self.table) == sorted(self.open)
        assert dict(self.table.items()) == self.open
        assert sorted(self.table.values()) == sorted(self.open.values())

    @invariant()
    def a_full_would_hold_every_stored_key_once(self) -> None:
        order = [key for key in self.table.order if key in self.table.stored]
        assert sorted(order) == sorted(self.stored)


class SortedMachine(TableMachine):
    """The same, and in order."""

    sorted = True

    @invariant()
    def is_in_order(self) -> None:
        assert list(self.table) == sorted(self.open)
        for low, high in ((None, None), (3, 9), (None, 5), (6, None), (4, 4)):
            expected = {k: v for k, v in self.open.items() if (low is None or low <= k) and (high is None or k < high)}
            assert list(self.table.range(low, high)) == sorted(expected.items())
            assert list(self.table.range(low, high, reverse=True)) == sorted(expected.items(), reverse=True)

    @invariant()
    def knows_its_ends(self) -> None:
        in_order = sorted(self.open.items())
        assert (self.table.first(), self.table.last()) == ((in_order[0], in_order[-1]) if in_order else (None, None))


class TracedMachine(SortedMachine):
    """Development mode changes nothing for those who put."""

    traced = True


TestTable, TestSortedTable, TestTracedTable = TableMachine.TestCase, SortedMachine.TestCase, TracedMachine.TestCase
TestTable.settings = TestSortedTable.settings = TestTracedTable.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)


def commit(table: Any) -> None:
    if isinstance(table, TracedTable):
        table.check_in_place()
    table.freeze()
    table.commit()


def test_a_table_may_be_written_while_it_is_iterated() -> None:
    for table in (bound(), bound(sorted=True)):
        for key in range(10):
            table[key] = key
        commit(table)
        for key in table:
            table.delete(key)
            table[key + 100] = key
        assert sorted(table) == list(range(100, 110))


def test_a_range_needs_a_sorted_table() -> None:
    for ask, arguments in (("range", (1, 2)), ("first", ()), ("last", ())):
        with pytest.raises(UsageError, match="sorted=True"):
            getattr(bound(), ask)(*arguments)


def test_the_end_of_a_table_passes_over_keys_that_are_gone() -> None:
    table = bound(sorted=True)
    for key in range(100):
        table[key] = key
    commit(table)
    for key in range(50):
        table.delete(key)
    assert table.first() == (50, 50)
    table.rollback()
    assert table.first() == (0, 0)
    for key in range(50):
        table.delete(key)
    commit(table)
    assert table.first() == (50, 50)
    assert len(table._keys()) == 50


def test_deleted_keys_leave_the_order_without_an_iteration() -> None:
    """Orders far from the top of a book: put, deleted, and never looked at."""
    table = bound(sorted=True)
    table[0] = 0
    for key in range(1, 100):
        table[key] = key
        commit(table)
        table.delete(key)
        commit(table)
        table[-key] = key
        table.rollback()
        assert table.first() == (0, 0)
    assert list(table._keys()) == [0]


class Point(msgspec.Struct):
    x: int
    y: int = 0


class OldPoint(msgspec.Struct):
    x: int


def test_a_value_changed_in_place_is_caught_and_gone_after_the_rollback() -> None:
    table = bound(value=Point, traced=True, mutable=True)
    table[1] = Point(1)
    commit(table)
    table[1].x = 2
    with pytest.raises(MutatedInPlace, match="table 'table', key 1"):
        table.check_in_place()
    table.rollback()
    assert table[1] == Point(1)
    table.check_in_place()


def test_a_value_changed_in_place_and_put_is_fine() -> None:
    table = bound(value=Point, traced=True, mutable=True)
    table[1] = Point(1)
    commit(table)
    point = table[1]
    point.x = 2
    table[1] = point
    commit(table)
    assert table[1] == Point(2)


def test_a_change_in_place_of_a_record_that_raised_does_not_reach_its_second_run() -> None:
    table = bound(value=list[int], traced=True, mutable=True)
    table[1] = [1]
    commit(table)
    table[1].append(2)
    table.rollback()
    assert table[1] == [1]


def test_a_value_of_an_older_version_is_not_taken_for_changed() -> None:
    """Rule D4: upcasting is a view until the key is written."""
    table = bound(value=Point, traced=True, mutable=True)
    table.load([1], [msgspec.msgpack.encode(OldPoint(7))])
    table.loaded()
    assert table[1] == Point(7, 0)
    table.check_in_place()


class Colour(StrEnum):
    RED = "red"


def test_a_key_that_would_not_come_back_is_rejected_before_it_is_written() -> None:
    wrong: list[tuple[Any, Any, str]] = [
        (str, 7, "key 7 cannot be stored as str"),
        (int, "7", "key '7' cannot be stored as int"),
        (int, True, "key True cannot be stored as int"),
        (bytes, "x", "cannot be stored as bytes|would come back as"),
        (tuple[str, int], ("a", "b"), "cannot be stored as tuple"),
    ]
    for kind, key, text in wrong:
        table = bound(key=kind)
        table[key] = 1
        with pytest.raises(UsageError, match=text):
            table.freeze()
    for kind, key in ((str, "red"), (tuple[str, int], ("a", 1)), (int, -5)):
        table = bound(key=kind)
        table[key] = 1
        assert table.freeze().keys == [key]


def test_in_development_a_value_of_another_type_than_declared_is_rejected() -> None:
    table = bound(value=Point, traced=True, mutable=True)
    table[1] = {"y": 2}
    with pytest.raises(UsageError, match=r"key 1: \{'y': 2\} would not come back as .*Point"):
        table.freeze()


def test_deleted_keys_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehold.state.partition_table._TOMBED", 10)
    table = bound()
    for key in range(100):
        table[key] = key
        table.delete(key - 3)
        commit(table)
    assert len(table.order) <= 3 + 11 + 1
    assert sorted(key for key in table.order if key in table.stored) == [97, 98, 99]


def test_a_table_drops_its_decoded_values_at_a_commit_and_keeps_the_writes_of_the_open_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("statehold.state.partition_table._DECODED", 2)
    table = bound(value=list, mutable=True)
    for key in range(5):
        table[key] = [key]
    table.delete(4)
    table.freeze()
    table[1] = [11]
    table.delete(2)
    table.commit()
    assert not table._cache
    assert list(table.items()) == [(0, [0]), (1, [11]), (3, [3])]
    table.rollback()
    assert list(table.items()) == [(0, [0]), (1, [1]), (2, [2]), (3, [3])]


def test_a_table_keeps_the_decoded_values_of_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehold.state.partition_table._DECODED", 3)
    table = bound()
    for key in range(3):
        table[key] = key
    table.freeze()
    table.commit()
    assert table._cache == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("arguments", [{}, {"mutable": True}, {"sorted": True}])
@pytest.mark.parametrize("traced", [False, True])
def test_a_missing_key_names_its_table(arguments: dict[str, Any], traced: bool) -> None:
    with pytest.raises(KeyError, match="table 'table' has no key 7"):
        bound(traced=traced, **arguments)[7]
