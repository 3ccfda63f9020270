"""The state as the protocol sees it: digest, keys and deltas against a recomputation (rules D2-D4, A4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statehold import Table
from statehold.bound.table import bind
from statehold.errors import UsageError
from statehold.state.digest import MODULUS, table_digest
from statehold.state.partition_table import Changes
from statehold.state.state import Frozen, State

KEYS = st.sampled_from("abcde")


def new_state(*, track_delta: bool) -> State:
    tables = [Table(key=str, value=int), Table(key=str, value=int, sorted=True)]
    for table, name in zip(tables, ("plain", "ordered"), strict=True):
        table.__set_name__(object, name)
    return State([bind(table) for table in tables], track_delta=track_delta)


def encoded(model: dict[str, dict[str, int]]) -> dict[str, dict[str, bytes]]:
    return {name: {k: msgspec.msgpack.encode(v) for k, v in table.items()} for name, table in model.items()}


def digest_of(stored: dict[str, dict[str, bytes]]) -> int:
    return sum(table_digest(name, list(table), table.values()) for name, table in stored.items()) % MODULUS


class StateMachine(RuleBasedStateMachine):
    """One owner's state; a mirror is built from nothing but its deltas."""

    track = True

    def __init__(self) -> None:
        super().__init__()
        self.state = new_state(track_delta=self.track)
        self.open: dict[str, dict[str, int]] = {"plain": {}, "ordered": {}}
        self.committed: dict[str, dict[str, int]] = {"plain": {}, "ordered": {}}
        self.at_delta = {"plain": dict[str, int](), "ordered": dict[str, int]()}
        self.mirror = new_state(track_delta=False)
        self.frozen: Frozen | None = None

    @rule(table=st.sampled_from(["plain", "ordered"]), key=KEYS, value=st.integers(0, 9))
    def put(self, table: str, key: str, value: int) -> None:
        self.state.tables[table].put(key, value)
        self.open[table][key] = value

    @rule(table=st.sampled_from(["plain", "ordered"]), key=KEYS)
    def delete(self, table: str, key: str) -> None:
        self.state.tables[table].delete(key)
        self.open[table].pop(key, None)

    @rule(delta=st.booleans())
    def commit(self, delta: bool) -> None:
        frozen = self.state.freeze()
        changes = self.state.delta(frozen) if delta else None
        assert frozen.digest == digest_of(encoded(self.open))
        assert frozen.keys == sum(map(len, self.open.values()))
        self.state.commit(frozen, delta=delta)
        self.committed = {name: dict(table) for name, table in self.open.items()}
        for change in changes or ():
            self.mirror.load(change)
        if delta:
            self.at_delta = self.committed
            self.mirror.loaded()
            assert self.mirror.digest == self.state.digest

    @rule(delta=st.booleans())
    def abort(self, delta: bool) -> None:
        """The delta of an aborted transaction reaches no reader, and is not forgotten."""
        frozen = self.state.freeze()
        if delta:
            self.state.delta(frozen)
        self.state.rollback()
        self.open = {name: dict(table) for name, table in self.committed.items()}

    @invariant()
    def memory_is_what_was_written(self) -> None:
        for name, table in self.state.tables.items():
            assert dict(table.items()) == self.open[name]
            assert len(table) == len(self.open[name])
            assert table.stored == encoded(self.committed)[name]
        assert self.state.digest == digest_of(encoded(self.committed))
        assert self.state.keys == sum(map(len, self.committed.values()))

    @invariant()
    def deltas_lead_to_the_state_of_the_last_one(self) -> None:
        for name, table in self.mirror.tables.items():
            assert dict(table.stored) == encoded(self.at_delta)[name]

    @precondition(lambda self: self.committed == self.open)
    @rule()
    def restore_from_the_mirror_and_replay(self) -> None:
        """A new owner: the state of the last delta, then the gap, handled again without deltas."""
        owner = new_state(track_delta=self.track)
        for name, table in self.mirror.tables.items():
            owner.load(Changes(name, list(table.stored), list(table.stored.values())))
        owner.loaded()
        for name, content in self.committed.items():
            for key in self.at_delta[name].keys() - content.keys():
                owner.tables[name].delete(key)
            for key, value in content.items():
                if self.at_delta[name].get(key) != value:
                    owner.tables[name].put(key, value)
        owner.commit(owner.freeze(), delta=False)
        assert owner.digest == self.state.digest
        self.state = owner


TestState = StateMachine.TestCase
TestState.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_in_commit_mode_a_delta_is_what_the_transaction_wrote() -> None:
    state = new_state(track_delta=True)
    for value in (1, 2):
        state.tables["plain"].put("a", value)
        frozen = state.freeze()
        assert [(c.table, c.keys) for c in state.delta(frozen)] == [("plain", ["a"])]
        state.commit(frozen, delta=True)
    assert state.delta(state.freeze()) == ()


def test_a_tombstone_of_an_absent_key_changes_nothing() -> None:
    state = new_state(track_delta=False)
    state.load(Changes("plain", ["a"], [b"1"]))
    state.load(Changes("plain", ["b"], [None]))
    state.loaded()
    assert (state.keys, state.digest) == (1, digest_of({"plain": {"a": b"1"}}))


def test_what_cannot_be_encoded_is_named_and_nothing_is_taken() -> None:
    state = new_state(track_delta=False)
    table: Any = state.tables["plain"]
    table.put("good", 1)
    table.put("bad", object())
    with pytest.raises(UsageError, match=r"table 'plain', key 'bad': <object .* cannot be encoded"):
        state.freeze()
    state.rollback()
    assert dict(table.items()) == {}
