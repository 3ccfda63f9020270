"""A release that has retired a table keeps its rows as they are, and the release that uses it can take them back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import rewrite

from statehold import Dedupe, Handler, Record, Retired, Table
from statehold.bound.attributes import table_types
from statehold.bound.handler import new_state
from statehold.errors import TableTypeChanged, UnknownSchema, UsageError
from statehold.snapshot.format import recorded_types
from statehold.snapshot.state_edits import Edits, drop
from statehold.state.types.description import of_text
from statehold.testing import Driver

SECOND = 1000


class First(msgspec.Struct, frozen=True):
    cents: int


class Second(msgspec.Struct, frozen=True):
    minor: int


class Counting(Handler[str]):
    counts = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.counts[record.value] = record.offset


class Using(Counting):
    """The release before: its table is in its second version, and still has a value of the first."""

    balances = Table(key=str, value=First)

    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.balances[record.value] = First(record.offset)


class UsingSecond(Counting):
    balances = Table(key=str, value=Second, version=2, upcasters={1: lambda old: Second(old["cents"])})

    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.balances[record.value] = Second(record.offset)


class Without(Counting):
    balances = Retired(key=str)


def test_rows_of_any_version_stay_and_the_release_before_takes_them_back() -> None:
    driver = Driver(Using)
    driver.feed("ann")
    driver.upgrade(UsingSecond)
    driver.feed("bob")
    driver.upgrade(Without)
    driver.feed("cid")
    driver.take_full()
    driver.feed("dan")
    driver.crash()
    driver.restore()
    assert list(driver.table("counts")) == ["ann", "bob", "cid", "dan"]
    driver.upgrade(UsingSecond)
    assert driver.table("balances") == {"ann": Second(0), "bob": Second(1)}
    driver.feed("eve")
    assert driver.table("balances")["eve"] == Second(4)


def test_a_release_that_would_misread_the_rows_is_kept_out_after_one_that_has_retired_them() -> None:
    """The commit records keep the types of the rows, although the code in between does not know them."""

    class Otherwise(Counting):
        balances = Table(key=str, value=Second)

    driver = Driver(Using)
    driver.feed("ann")
    driver.upgrade(Without)
    driver.feed("bob")
    for _ in range(2):
        driver.commit()
    with pytest.raises(TableTypeChanged, match="cents: int is gone"):
        driver.upgrade(Otherwise)


class OfNumbers(Counting):
    balances = Retired(key=int)


def test_the_type_of_the_keys_is_compared_as_ever() -> None:
    driver = Driver(Using)
    driver.feed("ann")
    with pytest.raises(TableTypeChanged, match=r"table 'balances' .*the key: str became int"):
        driver.upgrade(OfNumbers)
    driver.upgrade(Without)


def test_a_state_without_recorded_types_keeps_none_for_a_retired_table() -> None:
    driver = Driver(Using)
    driver.feed("ann")
    driver.commit()
    rewrite(driver, lambda record: msgspec.structs.replace(record, types={}))
    driver.upgrade(Without, crash=True)
    driver.feed("bob")
    driver.commit()
    assert set(driver.commit_record().types) == {"counts"}
    driver.upgrade(Using)
    assert driver.table("balances") == {"ann": First(0)}


class Expiring(Counting):
    balances = Table(key=str, value=First, ttl=timedelta(seconds=10))
    seen = Dedupe(key=str, ttl=10)

    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.balances[record.value] = First(record.offset)
        self.seen.seen(record.value)


class WithoutTime(Without):
    seen = Retired(key=str)


def test_keys_with_a_ttl_keep_it_for_the_release_that_reads_them() -> None:
    driver = Driver(Expiring)
    driver.feed("ann", timestamp=1 * SECOND)
    driver.upgrade(WithoutTime)
    driver.feed("bob", timestamp=100 * SECOND)
    assert inside.lanes(driver)[0].engine().event_time is None
    driver.upgrade(Expiring)
    assert driver.table("balances") == {"ann": First(0)}
    driver.feed("cid", timestamp=101 * SECOND)
    assert driver.table("balances") == {"cid": First(2)}
    assert set(driver.table("seen")) == {"cid"}


def test_the_rows_leave_with_the_edit_of_state_migrate() -> None:
    driver = Driver(Expiring)
    driver.feed("ann", timestamp=1 * SECOND)
    driver.upgrade(WithoutTime)
    old = inside.lanes(driver)[0].engine().state
    new = new_state(WithoutTime, traced=False, track_delta=False)
    edits = Edits(dict.fromkeys(("balances", "seen", "statehold.clock"), drop), [], old.tables)
    assert edits.apply(0, old, new).deleted == 4
    assert new.used == ["counts"]


def test_a_repartition_keeps_the_types_of_every_version() -> None:
    """One partition has values of the first version only, the other one of both."""
    driver = Driver(Using)
    driver.feed("ann")
    driver.commit()
    one = driver.commit_record().types
    driver.upgrade(UsingSecond)
    driver.feed("bob")
    driver.commit()
    both = driver.commit_record().types
    for recorded in ([both, one], [one, both]):
        joined = recorded_types.joined(recorded, table_types(Without))
        assert set(of_text(joined["balances"]).values) == {1, 2}


def test_a_handler_has_no_way_to_its_rows() -> None:
    driver = Driver(Using)
    driver.feed("ann")
    driver.upgrade(Without)
    handler: Any = driver.handler()
    with pytest.raises(TypeError, match="'Retired' object is not subscriptable"):
        handler.balances["ann"]
    with pytest.raises(AttributeError, match="'Retired' object has no attribute 'put'"):
        handler.balances.put("ann", b"")


def test_the_error_of_an_undeclared_table_names_the_declaration() -> None:
    driver = Driver(Using)
    driver.feed("ann")
    with pytest.raises(UnknownSchema, match=r"balances = Retired\(key=\.\.\.\) if nothing uses it"):
        driver.upgrade(Counting)


def test_a_retired_table_may_have_had_another_name() -> None:
    class Renamed(Counting):
        old_balances = Retired(key=str, was="balances")

    driver = Driver(Using)
    driver.feed("ann")
    driver.upgrade(Renamed)
    driver.upgrade(Using)
    assert driver.table("balances") == {"ann": First(0)}


def test_a_type_of_keys_that_no_table_can_have() -> None:
    with pytest.raises(UsageError, match="float"):
        Retired(key=float)
