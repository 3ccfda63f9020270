"""Splits and merges of tables between two releases: nothing is lost, and what the function leaves out is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold import Handler, Output, Record, Table
from statehold.errors import TableTypeChanged, UnknownSchema, UsageError
from statehold.testing import Driver


class Move(msgspec.Struct, frozen=True):
    amount: int
    limit: int = 0


class Account(msgspec.Struct, frozen=True):
    balance: int
    limit: int


class Balance(msgspec.Struct, frozen=True):
    minor: int


class Bank(Handler[Move]):
    """The release before: one table of accounts."""

    accounts = Table(key=str, value=Account)
    seen = Table(key=int, value=str)

    def on_record(self, record: Record[Move]) -> None:
        name, move = (record.key or b"").decode(), record.value
        before = self.accounts.get(name, Account(0, 0))
        self.accounts[name] = Account(before.balance + move.amount, move.limit or before.limit)
        self.seen[record.offset] = name


class Split(Handler[Move]):
    """The next release: balances and limits."""

    balances = Table(key=str, value=Balance, version=2, upcasters={1: lambda old: old})
    limits = Table(key=str, value=int)
    seen = Table(key=int, value=str)
    told = Output("told", value=Balance)

    def on_record(self, record: Record[Move]) -> None:
        name, move = (record.key or b"").decode(), record.value
        self.balances[name] = Balance(self.balances.get(name, Balance(0)).minor + move.amount)
        if move.limit:
            self.limits[name] = move.limit
        self.seen[record.offset] = name


def split(old: Bank, new: Split) -> None:
    for name, account in old.accounts.items():
        new.balances[name] = Balance(account.balance)
        if account.limit:
            new.limits[name] = account.limit


def merge(old: Split, new: Bank) -> None:
    for name, balance in old.balances.items():
        new.accounts[name] = Account(balance.minor, old.limits.get(name, 0))


def fed(moves: list[tuple[str, int, int]], partitions: int = 2) -> Driver:
    driver = Driver(Bank, partitions=partitions)
    for name, amount, limit in moves:
        driver.feed(Move(amount, limit), key=name)
    driver.commit()
    return driver


def tables(driver: Driver, *names: str) -> dict[str, dict[Any, Any]]:
    return {name: dict(driver.table(name)) for name in names}


MOVES = [("ann", 5, 100), ("bob", 7, 0), ("ann", -2, 0), ("cid", 1, 50)]


def test_a_table_is_split_and_merged_again() -> None:
    driver = fed(MOVES)
    before = tables(driver, "accounts", "seen")

    driver.upgrade(Split, migrate=split)

    assert tables(driver, "balances", "limits", "seen") == {
        "balances": {"ann": Balance(3), "bob": Balance(7), "cid": Balance(1)},
        "limits": {"ann": 100, "cid": 50},
        "seen": before["seen"],
    }
    assert {partition: driver.commit_record(partition).schemas for partition in range(2)} == {
        partition: {"balances": 2} if driver.commit_record(partition).keys else {} for partition in range(2)
    }
    driver.feed(Move(1), key="ann")
    driver.crash()
    driver.restore()
    assert driver.table("balances")["ann"] == Balance(4)

    driver.upgrade(Bank, migrate=merge)
    assert driver.table("accounts")["ann"] == Account(4, 100)
    assert driver.table("accounts")["bob"] == before["accounts"]["bob"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-9, 9), st.integers(0, 2)), max_size=25))
def test_any_state_is_the_same_after_a_split_and_a_merge(moves: list[tuple[str, int, int]]) -> None:
    driver = fed(moves)
    before, digests = tables(driver, "accounts", "seen"), [driver.commit_record(p).digest for p in range(2)]
    driver.upgrade(Split, migrate=split)
    driver.upgrade(Bank, migrate=merge)
    assert tables(driver, "accounts", "seen") == before
    assert [driver.commit_record(p).digest for p in range(2)] == digests


def test_the_release_before_cannot_continue_and_the_old_code_is_rejected() -> None:
    driver = fed(MOVES)
    driver.upgrade(Split, migrate=split)
    with pytest.raises(UnknownSchema):
        driver.upgrade(Bank)
    driver.upgrade(Split)
    assert driver.table("balances")["ann"] == Balance(3)


def forget_limits(old: Bank, new: Split) -> None:
    """Reads nothing."""


def write_old(old: Bank, new: Split) -> None:
    for name in old.accounts:
        old.accounts[name] = Account(0, 0)


def delete_old(old: Bank, new: Split) -> None:
    for name in list(old.accounts):
        old.accounts.delete(name)


def send(old: Bank, new: Split) -> None:
    split(old, new)
    new.told.send(Balance(1), key="ann")


def raising(old: Bank, new: Split) -> None:
    raise KeyError("ann")


def nameless(old: Any, new: Split) -> None:
    """Does not say which tables the state has."""


class WrongBank(Handler[Move]):
    accounts = Table(key=str, value=Balance)
    seen = Table(key=int, value=str)

    def on_record(self, record: Record[Move]) -> None:
        """Handles nothing."""


def wrong_old(old: WrongBank, new: Split) -> None:
    list(old.accounts.items())


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (
            forget_limits,
            UsageError,
            r"did not read table 'accounts' \(3 keys are left\), which the new release does not declare",
        ),
        (write_old, UsageError, "can only be read, not 'put'"),
        (delete_old, UsageError, "table 'accounts' of the old release can only be read, not 'delete'"),
        (send, UsageError, "sent an output"),
        (raising, UsageError, "raising raised KeyError: 'ann'"),
        (nameless, UsageError, "annotate `old` with a handler class"),
        (wrong_old, TableTypeChanged, "balance"),
    ],
)
def test_a_function_that_would_lose_something_changes_nothing(function: Any, error: Any, said: str) -> None:
    driver = fed(MOVES)
    before = tables(driver, "accounts", "seen")

    with pytest.raises(error, match=said):
        driver.upgrade(Split, migrate=function)

    driver.upgrade(Bank)
    assert tables(driver, "accounts", "seen") == before


class Retyped(Handler[Move]):
    """Keeps the names of its tables, and has another type for one of them."""

    accounts = Table(key=str, value=Balance)
    seen = Table(key=int, value=str)

    def on_record(self, record: Record[Move]) -> None:
        """Handles nothing."""


def retype(old: Bank, new: Retyped) -> None:
    for name, account in old.accounts.items():
        new.accounts[name] = Balance(account.balance)


def keep(old: Bank, new: Retyped) -> None:
    """Reads nothing."""


def test_a_table_of_another_type_starts_empty_and_has_to_be_read() -> None:
    driver = fed(MOVES)
    with pytest.raises(
        UsageError, match=r"did not read table 'accounts' \(3 keys are left\), which the new release declares"
    ):
        driver.upgrade(Retyped, migrate=keep)
    driver.upgrade(Retyped, migrate=retype)
    assert driver.table("accounts")["ann"] == Balance(3)


class Forgetting(Handler[Move]):
    """Its tables forget."""

    accounts = Table(key=str, value=int, ttl=10.0)

    def on_record(self, record: Record[Move]) -> None:
        self.accounts[(record.key or b"").decode()] = record.value.amount


class ForgettingHalves(Handler[Move]):
    odd = Table(key=str, value=int, ttl=10.0)
    even = Table(key=str, value=int, ttl=10.0)

    def on_record(self, record: Record[Move]) -> None:
        self.odd[(record.key or b"").decode()] = record.value.amount


def halves(old: Forgetting, new: ForgettingHalves) -> None:
    for name, amount in old.accounts.items():
        (new.odd if amount % 2 else new.even)[name] = amount


def test_keys_that_expire_get_their_time_again_from_the_partitions_time() -> None:
    driver = Driver(Forgetting)
    for at, name in enumerate(("ann", "bob")):
        driver.feed(Move(at), key=name, timestamp=1_000 + at)
    driver.upgrade(ForgettingHalves, migrate=halves)
    assert (dict(driver.table("odd")), dict(driver.table("even"))) == ({"bob": 1}, {"ann": 0})
    driver.feed(Move(3), key="cid", timestamp=20_000)
    assert dict(driver.table("odd")) == {"cid": 3}
    assert dict(driver.table("even")) == {}
