"""A release that declares another type for a table either reads every stored value as before, or does not go live."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct
from tests.support import inside
from tests.support.handlers import rewrite

from statehold import Dedupe, Handler, JoinBuffer, Record, Session, Table, Tumbling, renamed
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.bound.handler import new_state
from statehold.errors import DamagedIncrement, TableTypeChanged, UnknownSchema, UnreadableValue, UsageError
from statehold.snapshot.format import records
from statehold.snapshot.inspect.typed import Typed
from statehold.snapshot.restore.restore import restore
from statehold.snapshot.restore.standby_copy import Copy, copied
from statehold.snapshot.spark.fold.plan import make
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader


class Cents(Struct, frozen=True):
    cents: int = 0


class Minor(Struct, frozen=True):
    minor: int = 0


class MinorStoredAsCents(Struct, frozen=True):
    minor: int = msgspec.field(name="cents", default=0)


class Nothing(Struct, frozen=True):
    pass


class Floats(Struct, frozen=True):
    cents: float = 0


class Texts(Struct, frozen=True):
    cents: str = ""


class Atleast(Struct, frozen=True):
    cents: Annotated[int, Meta(ge=0)] = 0


class Atleast10(Struct, frozen=True):
    cents: Annotated[int, Meta(ge=10)] = 0


class AsArray(Struct, frozen=True, array_like=True):
    cents: int = 0


class Swapped(Struct, frozen=True, array_like=True):
    days: int = 0
    cents: int = 0


class InOrder(Struct, frozen=True, array_like=True):
    cents: int = 0
    days: int = 0


class Since(Struct, frozen=True):
    cents: int = 0
    since: int = 5


class SinceAnother(Struct, frozen=True):
    cents: int = 0
    since: int = 6


class SinceNow(Struct, frozen=True):
    cents: int = 0
    since: int = msgspec.field(default_factory=itertools.count().__next__)


class SinceRequired(Struct, frozen=True, kw_only=True):
    cents: int = 0
    since: int


class Sparse(Struct, frozen=True, omit_defaults=True):
    cents: int = 0


class SparseOne(Struct, frozen=True, omit_defaults=True):
    cents: int = 1


class Tagged(Struct, frozen=True, tag="cents"):
    cents: int = 0


class TaggedOtherwise(Struct, frozen=True, tag="money"):
    cents: int = 0


@dataclass(frozen=True)
class AsDataclass:
    cents: int = 0


class AsNamedTuple(NamedTuple):
    cents: int = 0


class AsDict(TypedDict):
    cents: int


class Chain(Struct, frozen=True):
    cents: int = 0
    next: Chain | None = None


class LongerChain(Struct, frozen=True):
    cents: int = 0
    next: LongerChain | None = None
    note: str = ""


class CappedChain(Struct, frozen=True):
    cents: Annotated[int, Meta(le=100)] = 0
    next: CappedChain | None = None


class MinorAndThen(Struct, frozen=True):
    minor: int = 0
    then: int = 0


class Two(enum.Enum):
    OPEN = "open"
    SHUT = "shut"


class Three(enum.Enum):
    BUSY = "busy"
    OPEN = "open"
    SHUT = "shut"


class One(enum.Enum):
    OPEN = "open"


#: each refused change: the old type, a value of it, the new type, and what the error must say
WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "field renamed with a default": (Cents, Cents(100), Minor, "cents: int is gone"),
    "field removed": (Cents, Cents(100), Nothing, "cents: int is gone"),
    "field without a default": (Cents, Cents(100), SinceRequired, "since: int is new and has no default"),
    "field with a default made each time": (
        Cents,
        Cents(1),
        SinceNow,
        "since: int is new, and each call makes another",
    ),
    "int to float": (Cents, Cents(100), Floats, "cents: int became float"),
    "int to str": (Cents, Cents(100), Texts, "cents: int became str"),
    "map to array": (Cents, Cents(100), AsArray, "object of cents became array of cents"),
    "map to named tuple": (Cents, Cents(100), AsNamedTuple, "object of cents became array of cents"),
    "other type": (Cents, Cents(100), int, "object of cents became int"),
    "tighter limit": (Atleast, Atleast(5), Atleast10, "cents: ge 0 became 10"),
    "new limit": (Cents, Cents(100), Atleast, "cents: ge none became 0"),
    "fields of an array in another order": (
        InOrder,
        InOrder(1, 2),
        Swapped,
        "an array of cents, days became one of days",
    ),
    "default of fields that are left out": (Sparse, Sparse(), SparseOne, "stored values without it read 0, and now 1"),
    "tag": (Tagged, Tagged(1), TaggedOtherwise, "object 'cents' became object 'money'"),
    "enum without a value": (Two, Two.SHUT, One, "enum without 'shut'"),
    "literal without a value": (Literal["a", "b"], "b", Literal["a"], "literal without 'b'"),
    "enum to str": (Two, Two.SHUT, str, "enum became str"),
    "union without a type": (int | str, "x", int, "str is no longer among its types"),
    "union with anything": (int, 5, Any, "int became any"),
    "union with anything, too": (int | str, 5, int | str | Any, "the value: may be any, too"),
    "items of a tuple": (tuple[int, ...], (1,), tuple[str, ...], r"\[\]: int became str"),
    "length of a tuple": (tuple[int, int], (1, 2), tuple[int, int, int], "became tuple"),
    "nested": (tuple[Cents, ...], (Cents(1),), tuple[Minor, ...], r"\[\].cents: int is gone"),
    "of itself": (Chain, Chain(1), Cents, "next: object of cents, next | none is gone"),
}

#: each compatible change: the old type, a value of it, the new type, what the event says, and the value as it reads
RIGHT: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "field with a default": (Cents, Cents(100), Since, "since: int is new; stored values read 5", Since(100, 5)),
    "field at the end of an array": (AsArray, AsArray(7), InOrder, "days: int is new", InOrder(7, 0)),
    "union grew": (int, 5, int | str, "the value: may be str, too", 5),
    "none": (Cents, Cents(5), Cents | None, "the value: may be none, too", Cents(5)),
    "enum grew": (Two, Two.SHUT, Three, "enum with 'busy', too", Three.SHUT),
    "literal grew": (Literal["a"], "a", Literal["a", "b"], "literal with 'b', too", "a"),
    "limit loosened": (Atleast10, Atleast10(12), Atleast, "cents: ge 10 became 0", Atleast(12)),
    "limit dropped": (Atleast, Atleast(5), Cents, "cents: ge 0 became none", Cents(5)),
    "of itself": (Chain, Chain(1, Chain(2)), LongerChain, "note: str is new", LongerChain(1, LongerChain(2))),
}

#: changes that no stored byte shows: no event
SAME: dict[str, tuple[Any, Any, Any, Any]] = {
    "another class": (Cents, Cents(100), AsDataclass, AsDataclass(100)),
    "the stored name is kept": (Cents, Cents(100), MinorStoredAsCents, MinorStoredAsCents(100)),
    "the order of an enum": (Two, Two.OPEN, enum.Enum("Two", [("SHUT", "shut"), ("OPEN", "open")]), None),
}


def release(value: Any, write: Any = None, *, key: Any = str, at: Any = "ann", **options: Any) -> type[Handler[str]]:
    """Return a release whose records write `write`, unless it is None, at the key `at`."""

    class Accounts(Handler[str]):
        rows = Table(key=key, value=value, mutable=True, **options)

        def on_record(self, record: Record[str]) -> None:
            if record.value == "delete":
                self.rows.delete(at)
            elif write is not None:
                self.rows[at] = write

    return Accounts


def written(kind: type[Handler[str]], **options: Any) -> Driver:
    """Return a driver whose release has written one value."""
    driver = Driver(kind, **options)
    driver.feed("write")
    driver.commit()
    return driver


def events(driver: Driver, name: str) -> list[dict[str, Any]]:
    return [fields for event, fields in driver.events if event == name]


@pytest.mark.parametrize("row", WRONG)
def test_a_type_that_reads_other_values_does_not_go_live(row: str) -> None:
    old, value, new, said = WRONG[row]
    driver = written(release(old, value))
    before, live = driver.commit_record(), len(events(driver, "live"))
    with pytest.raises(TableTypeChanged, match=said) as caught:
        driver.upgrade(release(new), crash=True)
    assert "table 'rows'" in str(caught.value)
    assert "The state has 1 keys. driver wrote the last commit record. Nothing was changed. Next:" in str(caught.value)
    assert len(events(driver, "live")) == live
    driver.upgrade(release(old, value))
    assert driver.table("rows") == {"ann": value}
    assert driver.commit_record().n == before.n


@pytest.mark.parametrize("row", RIGHT)
@pytest.mark.parametrize("full", [False, True], ids=["deltas", "full snapshot"])
def test_a_type_that_reads_the_same_goes_live_and_says_what_it_added(row: str, full: bool) -> None:
    old, value, new, said, read = RIGHT[row]
    driver = written(release(old, value))
    if full:
        assert driver.take_full() is not None
    driver.upgrade(release(new), crash=not full)
    assert driver.table("rows") == {"ann": read}
    (changed,) = events(driver, "table_type_changed")
    assert changed["table"] == "rows"
    assert said in changed["changes"][0]


@pytest.mark.parametrize("row", SAME)
def test_a_change_that_no_stored_byte_shows_is_no_change(row: str) -> None:
    old, value, new, read = SAME[row]
    driver = written(release(old, value))
    driver.upgrade(release(new))
    assert read is None or driver.table("rows") == {"ann": read}
    assert events(driver, "table_type_changed") == []


@pytest.mark.parametrize(
    ("old", "at", "new", "said"),
    [
        (int, 1, str, "the key: int became str"),
        (str, "ann", bytes, "the key: str became bytes"),
        (Two, Two.SHUT, One, "the key: enum without 'shut'"),
        (tuple[str, int], ("a", 1), tuple[str, int, int], "the key: "),
        (Cents, Cents(1), Since, "key since: int is new, and nothing that is stored has it"),
    ],
)
def test_keys_of_another_type_do_not_go_live(old: Any, at: Any, new: Any, said: str) -> None:
    driver = written(release(int, 5, key=old, at=at))
    with pytest.raises(TableTypeChanged, match=said) as caught:
        driver.upgrade(release(int, key=new))
    assert "keys of another type need a new table" in str(caught.value)


def test_keys_may_have_more_values() -> None:
    driver = written(release(int, 5, key=Two, at=Two.SHUT))
    driver.upgrade(release(int, key=Three))
    assert driver.table("rows") == {Three.SHUT: 5}


def test_the_release_before_is_kept_out_once_the_new_one_has_written() -> None:
    """It would drop the new field of each value that it writes."""
    old, new = release(Cents, Cents(1)), release(Since, Since(2, 7))
    driver = written(old)
    driver.upgrade(new)
    driver.upgrade(old)  # nothing was written, so nothing can be misread
    driver.upgrade(new)
    driver.feed("write")
    driver.commit()
    with pytest.raises(TableTypeChanged, match="since: int is gone"):
        driver.upgrade(old, crash=True)
    driver.upgrade(new)
    assert driver.table("rows") == {"ann": Since(2, 7)}


def test_a_replay_over_a_change_is_compared_as_any_other() -> None:
    driver = written(release(Cents, Cents(1)), delta_interval="off")
    driver.upgrade(release(Since, Since(2)))
    driver.feed("write")
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("rows") == {"ann": Since(2)}


def test_the_default_of_an_added_field_stays() -> None:
    """A value from before the field reads as the default, however long ago the field was added."""
    driver = written(release(Cents, Cents(1)))
    driver.feed("write")
    driver.upgrade(release(Since, Since(1), at="bob"))
    driver.feed("write")
    driver.commit()
    with pytest.raises(TableTypeChanged, match="since: stored values without it read 5, and now 6"):
        driver.upgrade(release(SinceAnother))
    driver.upgrade(release(Since))
    assert driver.table("rows") == {"ann": Since(1, 5), "bob": Since(1)}


def test_the_default_of_a_field_that_every_value_has_may_change() -> None:
    driver = written(release(Since, Since(1, 7)))
    driver.upgrade(release(SinceAnother))
    assert driver.table("rows") == {"ann": SinceAnother(1, 7)}
    assert events(driver, "table_type_changed") == []


def test_a_table_without_keys_may_have_any_type() -> None:
    driver = Driver(release(Cents))
    driver.feed("nothing")
    driver.commit()
    driver.upgrade(release(Minor, Minor(3)))
    driver.feed("write")
    driver.commit()
    assert list(driver.commit_record().types) == ["rows"]
    driver.feed("delete")
    driver.commit()
    assert driver.commit_record().types == {}
    driver.upgrade(release(float, 1.5))
    driver.feed("write")
    assert driver.table("rows") == {"ann": 1.5}


def test_an_upgrade_of_a_driver_reads_every_stored_value() -> None:
    def positive(old: Cents) -> Minor:
        if old.cents < 0:
            raise ValueError("below zero")
        return Minor(old.cents)

    driver = written(release(Cents, Cents(100)))
    driver.upgrade(release(Cents, Cents(-1), at="bob"))
    driver.feed("write")
    with pytest.raises(UnreadableValue, match=r"table 'rows', key 'bob': .*below zero"):
        driver.upgrade(release(Minor, version=2, upcasters={1: positive}))


def test_another_version_is_no_change_of_type() -> None:
    driver = written(release(Cents, Cents(100)))
    driver.upgrade(release(Minor, Minor(5), at="bob", version=2, upcasters={1: lambda old: Minor(old["cents"])}))
    assert driver.table("rows") == {"ann": Minor(100)}
    driver.feed("write")
    driver.commit()
    assert driver.table("rows") == {"ann": Minor(100), "bob": Minor(5)}
    with pytest.raises(UnknownSchema, match="holds values of version 2, this code declares version 1"):
        driver.upgrade(release(Cents))


def test_an_upcaster_reads_what_was_stored() -> None:
    def from_renamed(old: Minor) -> Since:
        return Since(old.minor)

    def from_stored(old: Cents) -> Since:
        return Since(old.cents)

    driver = written(release(Since, Since(100, 7)))
    with pytest.raises(TableTypeChanged, match=r"the upcaster of version 1: minor: int is new") as caught:
        driver.upgrade(release(Since, version=2, upcasters={1: from_renamed}))
    assert "let the upcaster read what is stored" in str(caught.value)
    driver.upgrade(release(Since, Since(1), at="bob", version=2, upcasters={1: from_stored}))
    assert driver.table("rows") == {"ann": Since(100)}
    driver.feed("write")
    driver.commit()
    with pytest.raises(TableTypeChanged, match="the upcaster of version 1"):
        driver.upgrade(release(Since, version=2, upcasters={1: from_renamed}))


def test_a_later_upcaster_may_read_what_the_one_before_has_ignored() -> None:
    def of_cents(old: Cents) -> Minor:
        return Minor(old.cents)

    def of_both(old: Since) -> Minor:
        return Minor(old.cents + old.since)

    driver = written(release(Since, Since(100, 7)))
    driver.upgrade(release(Minor, Minor(1), at="bob", version=2, upcasters={1: of_cents}))
    driver.feed("write")
    driver.commit()
    driver.upgrade(release(Minor, version=2, upcasters={1: of_both}))
    assert driver.table("rows") == {"ann": Minor(107), "bob": Minor(1)}


class Numbers:
    """A serde of the user's own."""

    version = 1

    def encode(self, value: int, /) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes, /) -> int:
        return int(data)


class Renamed(Numbers):
    name = "Numbers"


class Later(Numbers):
    version = 2


def test_a_serde_of_the_users_own_counts_by_name_and_version() -> None:
    driver = written(release(Numbers(), 5))
    driver.upgrade(release(Renamed()))
    with pytest.raises(TableTypeChanged, match="the serde Numbers 1 became the serde Later 2"):
        driver.upgrade(release(Later()))
    with pytest.raises(TableTypeChanged, match="the serde Numbers 1 became msgpack"):
        driver.upgrade(release(int))


def test_the_first_start_in_the_new_format_records_what_is_there() -> None:
    driver = written(release(Cents, Cents(1)))
    driver.crash()
    forget_types(driver)
    driver.restore()
    assert events(driver, "table_types_taken") == [{"tables": ["rows"]}]
    driver.advance(1)
    assert list(driver.commit_record().types) == ["rows"]
    driver.upgrade(release(Cents))
    with pytest.raises(TableTypeChanged):
        driver.upgrade(release(Minor))


def test_a_value_from_before_may_lack_a_field_that_the_first_start_declares() -> None:
    """An earlier release may have added it, and recorded nothing about it."""
    driver = written(release(Cents, Cents(1)))
    driver.crash()
    forget_types(driver)
    driver.upgrade(release(Since, Since(2, 7), at="bob"))
    driver.advance(1)
    with pytest.raises(TableTypeChanged, match="since: stored values without it read 5, and now 6"):
        driver.upgrade(release(SinceAnother))
    driver.upgrade(release(Since))
    assert driver.table("rows") == {"ann": Since(1, 5)}


def forget_types(driver: Driver) -> None:
    rewrite(driver, lambda record: msgspec.structs.replace(record, types={}))


def nested(depth: int) -> str:
    """Return the description of keys that are lists of lists."""
    lists, ends = '{"kind":"list","parts":[' * depth, "]}" * depth
    return '{"key":{"format":"msgpack","type":' + lists + '{"kind":"int"}' + ends + '},"values":{}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"key":{"format":"msgpack"}}',
        "x" * 200_000,
        '{"key":' * 5000,
        nested(150),
        nested(5000),
        '{"key":{"format":"msgpack","type":{"kind":"object","shape":7}},"values":{}}',
        '{"key":{"format":"msgpack","type":{"kind":"object"}},"values":{}}',
    ],
)
def test_a_type_that_a_stranger_wrote_is_damage(text: str) -> None:
    driver = written(release(Cents, Cents(1)))
    driver.crash()
    rewrite(driver, lambda record: msgspec.structs.replace(record, types={"rows": text}))
    with pytest.raises(DamagedIncrement, match="describes the type of a table as statehold does not"):
        driver.restore()


def test_a_description_that_no_commit_record_could_carry_is_an_error_of_the_declaration() -> None:
    fields = [(f"a_field_with_a_rather_long_name_{number}", int) for number in range(2000)]
    huge = msgspec.defstruct("Huge", fields, frozen=True)
    with pytest.raises(UsageError, match="table 'rows': a commit record cannot carry the description of its types"):
        written(release(huge))


def chain_of(length: int) -> str:
    """Return a description in which each class refers to the next one: it reads as `Chain` does."""
    none, cents = {"kind": "none"}, {"name": "cents", "type": {"kind": "int"}, "default": "0"}
    shapes = []
    for number in range(length):
        follows = {"kind": "union", "parts": [{"kind": "object", "shape": (number + 1) % length}, none]}
        shapes.append({"fields": [cents, {"name": "next", "type": follows, "default": "null"}]})
    value = {"format": "msgpack", "type": {"kind": "object", "shape": 0}, "shapes": shapes}
    key = {"format": "msgpack", "type": {"kind": "str"}}
    return msgspec.json.encode({"key": key, "values": {"1": value}}).decode()


def test_a_chain_of_a_thousand_classes_is_compared() -> None:
    """A stranger may write one; the stack of a comparison does not grow with it."""
    driver = written(release(Chain, Chain(1)))
    driver.crash()
    rewrite(driver, lambda record: msgspec.structs.replace(record, types={"rows": chain_of(700)}))
    with pytest.raises(TableTypeChanged, match=r"next\.next\.cents: le none became 100") as caught:
        driver.upgrade(release(CappedChain))
    assert len(str(caught.value)) < 3000
    driver.upgrade(release(Chain, Chain(2)))
    driver.feed("write")
    driver.commit()
    assert driver.table("rows") == {"ann": Chain(2)}


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [
        (Cents(1), Minor, "cents: int is gone; minor: int is new; stored values read 0"),
        (Cents(1), Minor, "or, if cents was renamed, keep its stored name: minor = msgspec.field(name='cents'), or"),
        (Since(1, 2), Cents, "run that code again, or declare version=2"),
        (Cents(1), Texts, "run that code again, or declare version=2"),
        (Since(1, 2), MinorAndThen, "or keep the stored name of a renamed field with msgspec.field"),
    ],
)
def test_the_error_names_the_way_of_a_renamed_field(old: Any, new: Any, way: str) -> None:
    """Only where one may have been renamed."""
    driver = written(release(type(old), old))
    with pytest.raises(TableTypeChanged) as caught:
        driver.upgrade(release(new))
    assert way in str(caught.value)


def test_the_full_snapshot_carries_the_types() -> None:
    driver = written(release(Cents, Cents(1)))
    driver.take_full()
    manifests = [
        found
        for message in driver.broker.log(driver.names.snapshot, 0).committed()
        if isinstance(found := records.unpack(message.value()), records.Manifest)
    ]
    assert manifests[-1].types == driver.commit_record().types
    assert inside.place(driver).types.keys() == driver.commit_record().types.keys()


def test_a_field_is_renamed_in_each_value_once() -> None:
    """Two fields that exchange their names would be exchanged back if it were done twice."""
    exchange = renamed({"cents": "days", "days": "cents"})
    pair = msgspec.defstruct("Pair", [("cents", int), ("days", int)], frozen=True)
    driver = written(release(pair, pair(1, 2)))
    driver.upgrade(release(pair, pair(7, 8), at="bob", version=2, upcasters={1: exchange}))
    assert driver.table("rows") == {"ann": pair(2, 1)}
    driver.feed("write")
    driver.crash()
    driver.restore()
    assert driver.table("rows") == {"ann": pair(2, 1), "bob": pair(7, 8)}
    driver.upgrade(release(pair, pair(7, 8), version=2, upcasters={1: exchange}))
    driver.feed("write")
    assert driver.table("rows") == {"ann": pair(7, 8), "bob": pair(7, 8)}


def test_a_renamed_field_keeps_its_value() -> None:
    driver = written(release(Cents, Cents(100)))
    driver.upgrade(release(Minor, version=2, upcasters={1: renamed({"cents": "minor"})}))
    assert driver.table("rows") == {"ann": Minor(100)}


@pytest.mark.parametrize(
    ("old", "error"), [(5, TypeError), ({"cents": 1, "minor": 2}, ValueError)], ids=["no object", "both names"]
)
def test_what_cannot_be_renamed_is_an_error(old: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        renamed({"cents": "minor"})(old)
    with pytest.raises(UsageError, match="two fields would get one name"):
        renamed({"cents": "minor", "pence": "minor"})


class Balances(Handler[str]):
    """The first release."""

    balances = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.balances[record.value] = self.balances.get(record.value, 0) + 1


class Accounts(Handler[str]):
    """The next one, in which the table has another name."""

    accounts = Table(key=str, value=int, sorted=True, ttl=60, was="balances")

    def on_record(self, record: Record[str]) -> None:
        self.accounts[record.value] = self.accounts.get(record.value, 0) + 1


@pytest.mark.parametrize("full", [False, True], ids=["deltas", "full snapshot"])
def test_a_renamed_table_stays_stored_under_its_first_name(full: bool) -> None:
    driver = Driver(Balances)
    driver.feed("ann")
    driver.commit()
    before = driver.commit_record().digest
    driver.upgrade(Accounts, crash=not full)
    assert driver.table("accounts") == driver.table(Accounts.accounts) == {"ann": 1}
    assert driver.commit_record().digest == before
    driver.feed("ann")
    driver.commit()
    assert driver.commit_record().types.keys() == {"balances"}
    if full:
        assert driver.take_full() is not None
    driver.crash()
    driver.restore()
    assert driver.table("accounts") == {"ann": 2}


def test_two_tables_exchange_their_names() -> None:
    """A driver goes by the attribute, also if another table is stored under its name."""

    class Both(Handler[str]):
        debits = Table(key=str, value=int)
        credits = Table(key=str, value=int)

        def on_record(self, record: Record[str]) -> None:
            self.debits["ann"], self.credits["ann"] = 1, 2

    class Exchanged(Handler[str]):
        debits = Table(key=str, value=int, was="credits")
        credits = Table(key=str, value=int, was="debits")

        def on_record(self, record: Record[str]) -> None:
            self.debits["ann"], self.credits["ann"] = self.credits["ann"], self.debits["ann"]

    driver = Driver(Both)
    driver.feed("write")
    driver.upgrade(Exchanged)
    assert driver.table("debits") == driver.table(Exchanged.debits) == {"ann": 2}
    assert driver.table("credits") == driver.table(Exchanged.credits) == {"ann": 1}
    driver.feed("exchange")
    driver.crash()
    driver.restore()
    assert (driver.table("debits"), driver.table("credits")) == ({"ann": 1}, {"ann": 2})


def test_a_rename_that_the_code_does_not_name_is_an_error() -> None:
    driver = Driver(Balances)
    driver.feed("ann")
    driver.commit()
    unnamed = type("Accounts", (Handler,), {"on_record": Balances.on_record, "accounts": Table(key=str, value=int)})
    with pytest.raises(
        UnknownSchema, match=r"holds table 'balances', this code declares: accounts: .* name it in was="
    ):
        driver.upgrade(unnamed)
    driver.upgrade(Accounts)


def test_two_tables_cannot_be_stored_under_one_name() -> None:
    both = type(
        "Both",
        (Handler,),
        {
            "on_record": Balances.on_record,
            "balances": Table(key=str, value=int),
            "accounts": Table(key=str, value=int, was="balances"),
        },
    )
    with pytest.raises(UsageError, match="tables 'balances' and 'accounts' are both stored as 'balances'"):
        Driver(both)
    with pytest.raises(UsageError, match="give the name that the attribute had before"):
        Table(key=str, value=int, was="statehold.timers")


def test_a_standby_replica_follows_no_owner_whose_values_it_would_misread() -> None:
    """Queries read the replica; the owner is a later release."""
    old, new = release(Cents, Cents(1)), release(Since, Since(2, 7))
    driver = written(old)
    place = inside.place(driver)
    reader = MemoryReader(driver.broker, lambda: False)
    state = partial(new_state, old, traced=False, track_delta=False)
    copy = copied(reader, place, restore(reader, place, state, lambda *_: None, driver.clock), Copy)
    offset = copy.offset
    driver.upgrade(new)
    driver.feed("write")
    driver.commit()
    log = driver.broker.log(driver.names.changelog, 0)
    with pytest.raises(TableTypeChanged, match="since: int is gone"):
        copy.feed(list(log.committed(offset)))
    assert dict(copy.state.tables["rows"].items()) == {"ann": Cents(1)}


def test_a_tool_shows_what_is_stored_where_the_code_has_no_field_for_it() -> None:
    shown = Typed(tables_and_outputs(release(Minor))[0]).value("rows", msgspec.msgpack.encode(Cents(100)))
    assert shown == {"undecodable": "this code has no field cents", "stored": {"cents": 100}}
    fine = Typed(tables_and_outputs(release(MinorStoredAsCents))[0])
    assert fine.value("rows", msgspec.msgpack.encode(Cents(100))) == {"cents": 100}


def test_an_export_has_no_other_values_than_the_service() -> None:
    """A compaction declares no types, because it reads no values."""
    first, second = release(Cents, Cents(1)), release(Since, Since(2, 7))
    driver = written(first)
    n = driver.commit_record().n
    driver.upgrade(second)
    driver.feed("write")
    driver.commit()
    place, reader = inside.place(driver), MemoryReader(driver.broker, lambda: False)
    newest = msgspec.structs.replace(place, types=table_types(second))
    assert make(reader, newest).goal.commit_record.n > n
    with pytest.raises(TableTypeChanged):
        make(reader, msgspec.structs.replace(place, types=table_types(first)))
    tools = msgspec.structs.replace(place, types={})
    assert make(reader, tools).goal.commit_record.n > n


def holding(name: str, declaration: Any) -> type[Handler[str]]:
    """Return a handler with windows, a join or a Dedupe of this name, whose records write it."""

    class Holding(Handler[str]):
        def on_record(self, record: Record[str]) -> None:
            found = getattr(self, name)
            if isinstance(found, Dedupe):
                found.seen(record.value)
            elif isinstance(found, JoinBuffer):
                found.left(record, record.value)
            else:
                found.update(record, record.value, lambda value: (value or 0) + 1)

        def on_window(self, *_: Any) -> None:
            """The test ends before."""

    return type("Holding", (Holding,), {name: declaration})


@pytest.mark.parametrize(
    "declare",
    [
        lambda **was: Tumbling(60, key=str, value=int, **was),
        lambda **was: Session(60, key=str, value=int, merge=max, **was),
        lambda **was: JoinBuffer(60, key=str, left=str, right=str, **was),
        lambda **was: Dedupe(key=str, ttl=60, **was),
    ],
    ids=["window", "session", "join", "dedupe"],
)
def test_windows_joins_and_a_dedupe_are_renamed_too(declare: Any) -> None:
    driver = Driver(holding("first", declare()))
    driver.feed("ann")
    driver.commit()
    before, held = driver.commit_record().digest, driver.table("first")
    assert held
    with pytest.raises(UnknownSchema, match="name it in was="):
        driver.upgrade(holding("second", declare()), crash=True)
    driver.upgrade(holding("second", declare(was="first")))
    assert driver.table("second") == held
    assert driver.commit_record().digest == before
    driver.feed("bob")
    driver.commit()
    driver.crash()
    driver.restore()
    assert len(driver.table("second")) == len(held) + 1
