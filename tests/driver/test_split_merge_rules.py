"""What a split or merge keeps without the function, and what it rejects: no row is lost or wrong in silence."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from types import new_class
from typing import Any

import pytest

from statehold import Call, CallResult, Dedupe, Handler, Output, Record, Reference, Replies, Retired, Table
from statehold.errors import ToolRefused, UnknownEffect, UsageError
from statehold.testing import Driver

AT = 1_700_000_000_000


class Named(Table[str, int]):
    """A table with a method of its own."""

    def total(self) -> int:
        return sum(self.values())


def handler(**tables: Any) -> type[Handler[int]]:
    """Return a handler that counts into `rest`, and writes each record to its other tables."""

    def on_record(self: Any, record: Record[int]) -> None:
        for name in (*tables, "rest"):
            table = getattr(self, name)
            if isinstance(table, Dedupe):
                table.seen((record.key or b"").decode())
            else:
                table[(record.key or b"").decode()] = record.value

    body = {**tables, "rest": Table(key=str, value=int), "on_record": on_record}
    return new_class("Old", (Handler[int],), exec_body=lambda space: space.update(body))


def next_of(**tables: Any) -> type[Handler[int]]:
    """Return the next release, which has `other` instead of `rest`."""

    def on_record(self: Any, record: Record[int]) -> None:
        """Handles nothing."""

    body = {**tables, "other": Table(key=str, value=int), "on_record": on_record}
    return new_class("New", (Handler[int],), exec_body=lambda space: space.update(body))


def moving(old: type[Any], new: type[Any]) -> Any:
    """Return a function that moves `rest` to `other`."""

    def move(old: Any, new: Any) -> None:
        for name, value in old.rest.items():
            new.other[name] = value

    move.__annotations__ = {"old": old, "new": new}
    return move


def fed(kind: type[Any], **options: Any) -> Driver:
    driver = Driver(kind, **options)
    for number, name in enumerate(("ann", "bob", "cid")):
        driver.feed(number, key=name, timestamp=AT + number)
    driver.commit()
    return driver


def text(**options: Any) -> Any:
    return Table(key=str, value=int, **options)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"sorted": True, "ttl": 100.0}, {"sorted": True, "ttl": 100.0}),
        ({"mutable": True, "ttl": 100.0}, {"mutable": True, "ttl": 100.0}),
        ({"sorted": True, "mutable": True}, {"sorted": True, "mutable": True}),
        ({}, {"sorted": True}),
        ({}, {"mutable": True}),
        ({}, {"ttl": 100.0}),
        ({"ttl": 100.0}, {}),
        ({"ttl": 100.0}, {"ttl": 5.0, "sorted": True}),
        ({}, {"version": 2, "upcasters": {1: lambda value: value}}),
    ],
)
def test_what_a_plain_upgrade_reads_is_kept(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = handler(kept=text(**old)), next_of(kept=text(**new))
    driver = fed(before)

    driver.upgrade(after, migrate=moving(before, after))

    assert dict(driver.table("kept")) == dict(driver.table("other")) == {"ann": 0, "bob": 1, "cid": 2}
    driver.feed(1, key="ann", timestamp=AT + 10)
    driver.crash()
    driver.restore()
    assert dict(driver.table("kept")) == {"ann": 0, "bob": 1, "cid": 2}


def test_a_table_of_a_class_of_ones_own_and_a_dedupe_are_kept() -> None:
    def declared() -> dict[str, Any]:
        return {"kept": Named(key=str, value=int), "seen": Dedupe(key=str, ttl=100.0)}

    before, after = handler(**declared()), next_of(**declared())
    driver = fed(before)
    driver.upgrade(after, migrate=moving(before, after))
    assert dict(driver.table("kept")) == {"ann": 0, "bob": 1, "cid": 2}
    assert dict(driver.table("seen")) == {name: AT + 100_000 + at for at, name in enumerate(("ann", "bob", "cid"))}


def test_a_method_of_ones_own_reads_the_old_table() -> None:
    before, after = handler(kept=Named(key=str, value=int)), next_of()

    def add_up(old: Any, new: Any) -> None:
        new.other["kept"] = old.kept.total()
        new.other["rest"] = sum(old.rest.values())

    add_up.__annotations__ = {"old": before, "new": after}
    driver = fed(before)
    driver.upgrade(after, migrate=add_up)
    assert dict(driver.table("other")) == {"kept": 3, "rest": 3}


def test_a_retired_table_keeps_its_rows() -> None:
    before = handler(kept=text(ttl=100.0))
    retired = next_of(kept=Retired(key=str))
    driver = fed(before)
    driver.upgrade(retired, migrate=moving(before, retired))
    keys = driver.commit_record(0).keys
    again = next_of(kept=text(ttl=100.0))
    driver.upgrade(again)
    assert dict(driver.table("kept")) == {"ann": 0, "bob": 1, "cid": 2}
    assert driver.commit_record(0).keys == keys


def test_keys_that_expired_do_not_come_back_when_the_ttl_goes() -> None:
    before, after = handler(kept=text(ttl=100.0)), next_of(kept=text())
    driver = fed(before)
    for number in range(30):
        driver.feed(number, key=f"{number}", timestamp=AT + 1000)
    driver.feed(9, key="late", timestamp=AT + 200_000)  # removes 8 of them
    driver.upgrade(after, migrate=moving(before, after))
    assert dict(driver.table("kept")) == {"late": 9}


def test_a_dedupe_is_not_read_as_a_table_of_the_same_types() -> None:
    before, after = handler(kept=Dedupe(key=str, ttl=100.0)), next_of(kept=text())
    driver = fed(before)
    with pytest.raises(UsageError, match="did not read table 'kept'"):
        driver.upgrade(after, migrate=moving(before, after))


# A table is lost only if the function went through it


def reading(how: str) -> Any:
    def touch(old: Any, new: Any) -> None:
        if how == "attribute":
            _ = old.rest.items
        elif how == "one key":
            new.other["ann"] = old.rest["ann"]
        elif how == "unused iterator":
            old.rest.items()
        elif how == "break":
            for _ in old.rest.items():
                break
        elif how == "some keys":
            for name in ("ann", "bob"):
                new.other[name] = old.rest.get(name, 0)
        elif how == "first":
            old.rest.values()
            len(old.rest)

    return touch


@pytest.mark.parametrize("how", ["attribute", "one key", "unused iterator", "break", "some keys", "first"])
def test_a_table_is_read_only_when_each_key_was(how: str) -> None:
    before, after = handler(), next_of()
    driver, touch = fed(before), reading(how)
    touch.__annotations__ = {"old": before, "new": after}
    with pytest.raises(UsageError, match="did not read table 'rest'"):
        driver.upgrade(after, migrate=touch)
    driver.upgrade(before)
    assert dict(driver.table("rest")) == {"ann": 0, "bob": 1, "cid": 2}


@pytest.mark.parametrize("how", ["keys", "values", "items", "gets", "range"])
def test_each_way_to_read_all_keys_counts(how: str) -> None:
    before, after = handler(sorted_=text(sorted=True)), next_of()
    driver = fed(before)

    def read(old: Any, new: Any) -> None:
        for table in (old.rest, old.sorted_):
            if how == "gets":
                assert [table.get(name) for name in ("ann", "bob", "cid")] == [0, 1, 2]
            elif how == "range" and table is old.sorted_:
                assert len([*table.range(high="b"), *table.range("b")]) == 3
            else:
                assert len(list(getattr(table, "items" if how == "range" else how)())) == 3

    read.__annotations__ = {"old": before, "new": after}
    driver.upgrade(after, migrate=read)
    assert dict(driver.table("other")) == {}


# Functions that would do nothing, or something else


def generator(old: Any, new: Any) -> Iterator[int]:
    moving(Handler, Handler)(old, new)
    yield 1


async def coroutine(old: Any, new: Any) -> None:
    moving(Handler, Handler)(old, new)


async def asynchronous(old: Any, new: Any) -> AsyncIterator[int]:
    yield 1


def returning(old: Any, new: Any) -> Any:
    return generator(old, new)


def assigning(old: Any, new: Any) -> None:
    new.other = dict(old.rest.items())


def leaving(old: Any, new: Any) -> None:
    moving(Handler, Handler)(old, new)
    sys.exit(0)


def keyword(old: Any, *, new: Any = None) -> None:
    """Cannot be called with two arguments."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (generator, "is a generator or a coroutine"),
        (coroutine, "is a generator or a coroutine"),
        (asynchronous, "is a generator or a coroutine"),
        (returning, "returned a generator or a coroutine"),
        (assigning, r"assigned new\.other"),
        (leaving, r"leaving raised SystemExit: 0 \(test_split_merge_rules\.py, line \d+\)"),
        (keyword, r"takes \(old, new\)"),
    ],
)
def test_a_function_that_does_something_else_is_rejected(function: Any, said: str) -> None:
    before, after = handler(), next_of()
    driver = fed(before)
    function.__annotations__ = {"old": before, "new": after}
    with pytest.raises(UsageError, match=said):
        driver.upgrade(after, migrate=function)
    driver.upgrade(before)
    assert dict(driver.table("rest")) == {"ann": 0, "bob": 1, "cid": 2}


def test_annotations_are_those_of_classes_that_can_be_made_and_of_the_service() -> None:
    before, after = handler(), next_of()

    class Given(before):  # type: ignore[misc, valid-type]
        def __init__(self, factor: int) -> None:
            self.factor = factor

    driver = fed(before)
    for hints, said in (
        ({"old": Given, "new": after}, r"Given\(\) raises TypeError"),
        ({"old": before, "new": before}, "writes the tables of Old, and the service has New"),
        ({"old": "Nowhere", "new": after}, "annotations cannot be read: NameError"),
    ):
        function = moving(before, after)
        function.__annotations__ = hints
        with pytest.raises(UsageError, match=said):
            driver.upgrade(after, migrate=function)

    class Callable:
        def __call__(self, old: Any, new: Any) -> None:
            moving(before, after)(old, new)

    Callable.__call__.__annotations__.update(old=before, new=after)
    driver.upgrade(after, migrate=Callable())
    assert dict(driver.table("other")) == {"ann": 0, "bob": 1, "cid": 2}


# Time, replay, effects, reference data


@pytest.mark.parametrize("declared", [text(ttl=10.0), Dedupe(key=str, ttl=10.0)])
def test_keys_that_expire_need_a_time_to_count_from(declared: Any) -> None:
    before, after = handler(), next_of(short=declared)

    def write(old: Any, new: Any) -> None:
        for name, value in old.rest.items():
            if isinstance(declared, Dedupe):
                new.short.seen(name)
            else:
                new.short[name] = value

    write.__annotations__ = {"old": before, "new": after}
    with pytest.raises(UsageError, match="wrote to table 'short', whose keys expire, and the old release has no time"):
        fed(before).upgrade(after, migrate=write)


def test_a_stored_state_that_is_older_than_the_last_commit_is_rejected() -> None:
    before, after = handler(), next_of()
    driver = fed(before, delta_interval=60.0)
    driver.crash()
    with pytest.raises(ToolRefused, match="the newest stored state is at 0"):
        driver.upgrade(after, migrate=moving(before, after))
    driver.upgrade(before)
    assert dict(driver.table("rest")) == {"ann": 0, "bob": 1, "cid": 2}


class Mailer(Handler[int]):
    rest = Table(key=str, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.rest[(record.key or b"").decode()] = record.value
        self.effect(self.mail, record.value)

    def mail(self, key: Any, value: int) -> None:
        """Sends a mail."""


def test_pending_effects_that_the_new_release_cannot_call_are_rejected_in_time() -> None:
    after = next_of()
    driver = Driver(Mailer)
    driver.fail_effects(ConnectionError("no network"))
    driver.feed(1, key="ann")
    with pytest.raises(UnknownEffect, match="mail"):
        driver.upgrade(after, migrate=moving(Mailer, after))
    driver.upgrade(Mailer)
    assert dict(driver.table("rest")) == {"ann": 1}


def test_reference_data_cannot_be_used() -> None:
    before, after = handler(), next_of(rates=Reference("rates", key=str, value=int))
    for use in (lambda new: new.rates.get("eur"), lambda new: new.rates["eur"], lambda new: "eur" in new.rates):

        def convert(old: Any, new: Any, use: Any = use) -> None:
            use(new)

        def two(old: Any, new: Any) -> None:
            convert(old, new)

        two.__annotations__ = {"old": before, "new": after}
        with pytest.raises(UsageError, match="reference data 'rates' is not read in a migration"):
            fed(before).upgrade(after, migrate=two)


class Telling(Mailer):
    told = Output("told", value=int)


def test_sending_through_the_old_handler_is_rejected() -> None:
    after = next_of()

    def send(old: Any, new: Any) -> None:
        moving(Telling, after)(old, new)
        old.told.send(1)

    send.__annotations__ = {"old": Telling, "new": after}
    driver = Driver(Telling)
    driver.feed(1, key="ann")
    with pytest.raises(UsageError, match="sent an output"):
        driver.upgrade(after, migrate=send)


# Work that waits


def fetch(id: str, number: int) -> int:
    """Another system."""
    return number


class Waiting(Handler[int]):
    """Has timers, calls that wait for an answer, and kept replies."""

    rest = Table(key=str, value=int)
    fetched = Call(fetch, argument=int, result=int)
    replies = Replies(int, keep=timedelta(days=1))

    def on_record(self, record: Record[int]) -> None:
        key = (record.key or b"").decode()
        self.rest[key] = record.value
        self.schedule(record.now + timedelta(hours=1), key)
        self.fetched(record.value)
        record.reply(record.value)

    def on_timer(self, timer: Any) -> None:
        """Comes to nothing."""

    @fetched.on_result
    def on_fetched(self, done: CallResult[int, int]) -> None:
        """Needs nothing."""


def waiting() -> tuple[Driver, type[Any], Any]:
    """Return a driver in which all of it waits, the next release without any of it, and the function."""
    after = next_of()
    driver = Driver(Waiting)
    driver.feed(1, key="ann", timestamp=AT)
    driver.ask(2, "bob", id="one", timestamp=AT)
    driver.commit()
    return driver, after, moving(Waiting, after)


WORK = ["statehold.timers", "fetched", "replies"]


@pytest.mark.parametrize("kept", WORK)
def test_work_that_waits_is_named_with_the_option_that_deletes_it(kept: str) -> None:
    driver, after, move = waiting()
    with pytest.raises(UsageError, match=f"--drop {kept}"):
        driver.upgrade(after, migrate=move, drop=[name for name in WORK if name != kept])
    driver.upgrade(Waiting)
    assert dict(driver.table("rest")) == {"ann": 1, "bob": 2}


def test_work_that_waits_is_dropped_by_name_and_rows_of_the_partition_go_with_it() -> None:
    driver, after, move = waiting()
    driver.upgrade(after, migrate=move, drop=WORK)
    assert dict(driver.table("other")) == {"ann": 1, "bob": 2}
    assert driver.commit_record().keys == 2
    driver.feed(3, key="cid", timestamp=AT + 120_000)
    driver.crash()
    driver.restore()
    assert dict(driver.table("other")) == {"ann": 1, "bob": 2}


def test_a_dropped_table_starts_empty_where_the_new_release_has_it() -> None:
    before, after = handler(kept=text(ttl=100.0)), next_of(kept=text(ttl=100.0))
    driver = fed(before)
    driver.upgrade(after, migrate=moving(before, after), drop=["kept"])
    assert (dict(driver.table("kept")), dict(driver.table("other"))) == ({}, {"ann": 0, "bob": 1, "cid": 2})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "Old has no table 'gone'; there are: kept, rest, statehold.clock"),
        ("statehold.clock", "leave out --drop statehold.clock"),
    ],
)
def test_what_cannot_be_dropped_is_an_error(name: str, said: str) -> None:
    before, after = handler(kept=text(ttl=100.0)), next_of()
    driver = fed(before)
    with pytest.raises(UsageError, match=said):
        driver.upgrade(after, migrate=moving(before, after), drop=[name])
    with pytest.raises(UsageError, match="drop is for a migration"):
        driver.upgrade(after, drop=["kept"])
