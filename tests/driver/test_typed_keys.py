"""Keys of a declared type: how they are read and written, what cannot be decoded, and what keeps their bytes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID

import msgspec
import pytest

from statehold import (
    Client,
    Handler,
    Int64,
    JoinBuffer,
    Json,
    MsgPack,
    Output,
    Record,
    Registry,
    Rekey,
    Replies,
    Service,
    Table,
    Timer,
    Tumbling,
    dead_letter,
    on,
)
from statehold.api.record import KeyedRecord, MemoryMessage, MergedMessage
from statehold.api.values.keys import KeySerde
from statehold.bound.inputs import InputKeys, RecordKeys, input_names, key_types
from statehold.bound.serdes import input_type, key_type
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UndecodableRecord, UsageError
from statehold.testing import Driver
from statehold.testing.simulation import SimulatedCluster

V = TypeVar("V")
K = TypeVar("K")
ID = UUID("0190b2c3-0000-7000-8000-00000000000a")


class Pair(msgspec.Struct, frozen=True):
    buyer: str
    book: int


class Side(StrEnum):
    BUY = "buy"


@dataclass(frozen=True)
class Place:
    city: str | None
    side: Side


class Named(NamedTuple):
    name: str
    day: date


@dataclass
class Reversed:
    """A serde that has no hash, because it compares by its fields."""

    times: int = 1

    def encode(self, key: str, /) -> bytes:
        return key[:: -self.times].encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()[:: -self.times]


class Open(msgspec.Struct):
    name: str


class Odd(msgspec.Struct, frozen=True):
    amount: Decimal


class Nested(msgspec.Struct, frozen=True):
    name: str
    inner: tuple[Nested, ...] = ()


AccountId = NewType("AccountId", str)
REGISTRY = Registry("mock://keys", register=True)
AVRO = REGISTRY.avro(
    Pair,
    '{"type": "record", "name": "Pair", "fields": [{"name": "buyer", "type": "string"}, '
    '{"name": "book", "type": "int"}]}',
)

KEYS: dict[str, tuple[Any, Any, bytes | None]] = {
    "text": (str, "ann", b"ann"),
    "bytes": (bytes, b"\xff", b"\xff"),
    "number": (int, -7, b"-7"),
    "eight bytes": (Int64(), -7, b"\xff" * 7 + b"\xf9"),
    "annotated": (Annotated[int, Int64()], 1, b"\0" * 7 + b"\1"),
    "uuid": (UUID, ID, str(ID).encode()),
    "struct": (Pair, Pair("ann", 1), b'{"buyer":"ann","book":1}'),
    "new type": (AccountId, "ann", b"ann"),
    "new type or none": (AccountId | None, None, None),
    "with a note": (Annotated[str, {"doc": 1}], "ann", b"ann"),
    "tuple": (tuple[str, int], ("ann", 1), b'["ann",1]'),
    "named tuple": (Named, Named("ann", date(2026, 1, 2)), b'["ann","2026-01-02"]'),
    "dataclass": (Place, Place(None, Side.BUY), b'{"city":null,"side":"buy"}'),
    "in itself": (Nested, Nested("a", (Nested("b"),)), b'{"name":"a","inner":[{"name":"b","inner":[]}]}'),
    "text in JSON": (Json(str), "ann", b'"ann"'),
    "message pack": (MsgPack(tuple[str, int]), ("ann", 1), msgspec.msgpack.encode(("ann", 1))),
    "without a hash": (Reversed(), "ann!", b"!nna"),
    "no key": (str | None, None, None),
    "no key of a serde": (Annotated[int, Int64()] | None, None, None),
    "no key in its type": (Annotated[int | None, Int64()], None, None),
    "text or none": (str | None, "ann", b"ann"),
}


class Kept(Handler[int]):
    """Keep what came under its offset, as text, and send it on; each test declares the type."""

    seen: ClassVar[Table[int, str]] = Table(key=int, value=str)
    out: ClassVar[Output[int, Any]]

    def on_record(self, record: Record[int, Any]) -> None:
        self.seen[record.offset] = repr((record.key, record.raw_key))
        self.out.send(record.value, key=record.key)


def keeping(kind: Any) -> type[Kept]:
    class Typed(Kept, Handler[int, kind]):
        out = Output("out", value=int, key=kind)

    return Typed


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_read_and_written_as_its_type(name: str) -> None:
    kind, key, data = KEYS[name]
    driver = Driver(keeping(kind))
    driver.feed(1, key=key)
    driver.feed(2, key=data)
    assert driver.table("seen") == dict.fromkeys((0, 1), repr((key, data)))
    assert [record.key for record in driver.sent("out")] == [data, data]
    driver.crash()
    driver.restore()
    driver.replay()


@pytest.mark.parametrize(("kind", "data", "why"), [
    (str, b"\xff", "invalid start byte"),
    (str, None, "the record has no key; to receive such records, declare str | None"),
    (int, b"one", "is no int"),
    (int, b"007", "it is written as 7, and another spelling has another partition"),
    (int, b"1_0", "it is written as 10"),
    (UUID, str(ID).upper().encode(), f"it is written as {ID}"),
    (Int64(), b"7", r"is no Int64: 8 bytes expected, got 1"),
    (Pair, b'{"buyer":"ann"}', "missing required field `book`"),
    (AVRO, b"ann", "is no Registered"),
])  # fmt: skip
def test_a_key_that_cannot_be_decoded_fails_its_record(kind: Any, data: bytes | None, why: str) -> None:
    driver = Driver(keeping(kind))
    with pytest.raises(UndecodableRecord, match=r"input\[0\]@0: UnreadableKey: ") as caught:
        driver.feed(1, key=data)
    assert caught.match(why)


@pytest.mark.parametrize("batch", [1, 4])
def test_it_follows_the_failure_policy_and_its_dead_letter_keeps_the_bytes(batch: int) -> None:
    class Lenient(keeping(int)):  # type: ignore[misc]
        on_failure: ClassVar = {UndecodableRecord: dead_letter()}

    driver = Driver(Lenient, batch=batch)
    for key in (b"1", b"x", b"2", b"x"):
        driver.feed(5, key=key)
    driver.commit()
    assert list(driver.table("seen")) == [0, 2]
    assert [(each.offset, each.key) for each in driver.dead_letters()] == [(1, b"x"), (3, b"x")]
    driver.replay()


def test_the_value_that_fails_first_is_named_first() -> None:
    driver = Driver(keeping(int), batch=2, autocommit=False)
    driver.feed(b"no number", key=b"1")
    with pytest.raises(UndecodableRecord, match=r"@0: ValueError: "):
        driver.feed(5, key=b"no number")


def test_keys_of_the_registry_have_a_subject_of_their_own() -> None:
    driver = Driver(keeping(AVRO))
    driver.feed(1, key=Pair("ann", 7))
    assert driver.table("seen")[0].startswith("(Pair(buyer='ann', book=7), b'\\x00")
    driver.sent("out")
    assert {"input-key", "out-key"} <= set(REGISTRY.client.get_subjects())
    with pytest.raises(UsageError, match="its topic is this service's own"):
        Rekey("by", key=AVRO, value=int)


class Inputs(Handler[None]):
    by_pair = Rekey("by_pair", key=Pair, value=int)
    sums = Table(key=str, value=int)
    raw: ClassVar[list[Any]] = []

    @on("plain", value=int)
    def plain(self, record: Record[int]) -> None:
        Inputs.raw.append(record.key)

    @on("numbers", value=int, key=Int64())
    def number(self, record: Record[int, int]) -> None:
        self.by_pair.send(record.value, key=Pair("ann", record.key))

    @on(by_pair)
    def pair(self, record: Record[int, Pair]) -> None:
        assert self.by_pair.key(record) == record.key
        name = f"{record.key.buyer}/{record.key.book}"
        self.sums[name] = self.sums.get(name, 0) + record.value


def test_each_input_and_each_rekey_has_its_own_type() -> None:
    Inputs.raw.clear()
    driver = Driver(Inputs, partitions=3)
    driver.feed(1, key="ann", input="plain")
    driver.feed(5, key=77, input="numbers", partition=1)
    driver.feed(6, key=77, input="numbers", partition=2)
    driver.commit()
    assert Inputs.raw == [b"ann"]
    assert [driver.table("sums", partition) for partition in range(3)].count({"ann/77": 11}) == 1
    with pytest.raises(UndecodableRecord, match=r"numbers\[0\]@0: UnreadableKey"):
        driver.feed(5, key=b"77", input="numbers")


_WHY: dict[str, tuple[Any, str]] = {
    "float": (float, r"float cannot be a key .* Next: use an int of the smallest unit"),
    "decimal": (Odd, r"Odd .*decimal cannot be a key or a part of one.*1\.5 equals 1\.50"),
    "moment": (tuple[str, datetime], r"datetime cannot be a key .*an int of milliseconds, or a date"),
    "set": (frozenset[str], r"frozenset cannot be a key .* Next: use a tuple"),
    "list": (list[int], r"list cannot be a key .* Next: use a tuple"),
    "dict": (dict[str, int], r"is not one of str, bytes, int, UUID, a tuple.* Next: use one, or a serde"),
    "union": (bytes | str, r"Next: use a tuple whose first item names the kind"),
    "union in a tuple": (tuple[int | str], r"union cannot be .* Next: use a tuple whose first item names the kind"),
    "enum": (Side, r"Side .*is not one of .* Next: declare str or int and convert record\.key"),
    "literal": (Literal["a", "b"], r"is not one of .* Next: declare str or int and convert record\.key"),
    "bool": (bool, r"is not one of .* Next: declare str or int"),
    "limits": (Annotated[str, msgspec.Meta(max_length=3)], r"nothing would check the limits of its Meta"),
    "anything": (Any, r"any cannot be a key .* Next: name the type; without one a key is bytes"),
    "nothing": (type(None), r"no key has it\. Next: leave it out"),
    "class of a serde": (Int64, r"Int64 .*it is the class of a serde\. Next: Int64\(\)"),
    "text": ("str", r"'str' .*it is a text\. Next: name the type itself"),
    "open": (tuple[K, int], r"leaves a type variable open"),  # type: ignore[valid-type]
    "mutable": (Open, r"two of Open with equal fields are not one key\. Next: frozen=True"),
    "foreign": (complex, r"complex is not one of .* Next: use one, or a serde"),
    "JSON of floats": (Json(tuple[float]), r"Json\(tuple\[float\]\) .*float cannot be a key or a part of one"),
    "a value": (5, r"Next: use str, bytes, int, UUID"),
}


@pytest.mark.parametrize("kind", _WHY)
def test_a_type_of_keys_that_is_not_supported_is_rejected_where_it_is_declared(kind: str) -> None:
    declared, why = _WHY[kind]
    with pytest.raises(UsageError, match=rf"^Output\('out'\): keys of the type .*{why}"):
        Output("out", value=int, key=declared)
    with pytest.raises(UsageError, match=rf"^Rekey\('by'\): keys of the type .*{why}"):
        Rekey("by", key=declared, value=int)
    with pytest.raises(UsageError, match=rf"^on\('x'\): keys of the type .*{why}"):
        on("x", value=int, key=declared)
    with pytest.raises(UsageError, match=rf"^Service\(key=\.\.\.\): keys of the type .*{why}"):
        Service("s", input="x", handler=Handler, key=declared)
    with pytest.raises(UsageError, match=rf"^Client\(key=\.\.\.\): keys of the type .*{why}"):
        Client("s", Settings(), input="x", value=int, key=declared)


@pytest.mark.parametrize("declared", [complex, Side, "str", Any, None])
def test_so_is_one_of_a_handler(declared: Any) -> None:
    class Typed(Handler[int, declared]):
        def on_record(self, record: Record[int, Any]) -> None: ...

    for start in (lambda: Service("s", input="x", handler=Typed), lambda: Driver(Typed)):
        with pytest.raises(UsageError, match=r"^Typed: Handler\[\.\.\., KEY\]: keys of the type "):
            start()


@pytest.mark.parametrize(("declared", "key"), [
    (Pair, "ann"),
    (Pair, {"book": 1, "buyer": "ann"}),
    (Pair, Pair("ann", 1.0)),  # type: ignore[arg-type]
    (Pair, Pair("ann", True)),
    (tuple[str, int], "ann"),
    (tuple[str, int], ("ann", 1.0)),
    (tuple[str, Literal["a"]], ("ann", "zzz")),
    (tuple[date], (datetime(2026, 1, 2, tzinfo=UTC),)),
    (Place, Place("here", "sell")),  # type: ignore[arg-type]
    (Json(str), 1),
    (MsgPack(tuple[int]), (1.0,)),
    (int, "1"),
    (AccountId, 1),
    (int, "9" * 5000),
])  # fmt: skip
def test_a_key_that_its_receiver_could_not_read_fails_in_the_sender(declared: Any, key: Any) -> None:
    class Sending(Handler[int]):
        by = Rekey("by", key=declared, value=int)

        @on("rows", value=int)
        def row(self, record: Record[int]) -> None:
            self.by.send(record.value, key=key)

        @on(by)
        def received(self, record: Record[int, Any]) -> None: ...

    with pytest.raises(Exception, match=r"UsageError: Rekey\('by'\): the key "):
        Driver(Sending).feed(1)


@pytest.mark.parametrize("declared", [str, int, Int64(), tuple[int]])
def test_a_number_that_python_does_not_print_has_an_error_that_says_so(declared: Any) -> None:
    with pytest.raises(UsageError, match=r"the key .* without a repr, of type (int|tuple)") as caught:
        KeySerde(declared).encode((10**5000,) if declared == tuple[int] else 10**5000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("declared", "advice"), [
    (str, r"str \| None"),
    (Pair, r"Pair \| None"),
    (AVRO, r"Annotated\[TYPE, SERDE\] \| None"),
    (Int64(), r"Annotated\[int, Int64\(\)\] \| None"),
    (Annotated[int, Int64()], r"Annotated\[int, Int64\(\)\] \| None"),
])  # fmt: skip
def test_a_missing_key_is_an_error_for_each_type_without_none(declared: Any, advice: str) -> None:
    class Sending(Handler[int]):
        out = Output("out", value=int, key=declared)

        def on_record(self, record: Record[int]) -> None:
            if record.value == 1:
                self.out.send(1)
            else:
                self.out.send_all([1])

    for value in (1, 2):
        with pytest.raises(Exception, match=r"Output\('out'\): there is no key, and it is declared with key="):
            Driver(Sending).feed(value)
    with pytest.raises(UndecodableRecord, match=rf"the record has no key; to receive such records, declare {advice}"):
        Driver(keeping(declared)).feed(1)


def test_a_rekey_has_no_records_without_a_key() -> None:
    kinds: tuple[Any, ...] = (str | None, Annotated[int, Int64()] | None, AccountId | None)
    for declared in kinds:
        with pytest.raises(UsageError, match=r"Rekey\('by'\): a record without a key goes to any partition"):
            Rekey("by", key=declared, value=int)


def test_the_description_of_a_serde_is_that_of_its_type() -> None:
    assert KeySerde(AccountId | None).type == str | None
    assert KeySerde(Annotated[str, {"doc": 1}]).type is str


def test_a_send_with_a_key_of_another_type_names_the_output() -> None:
    class Wrong(Handler[int]):
        out = Output("out", value=int, key=int)
        by = Rekey("by", key=UUID, value=int)

        @on("rows", value=int)
        def row(self, record: Record[int]) -> None:
            if record.value:
                self.out.send(1, key=record.raw_key)  # type: ignore[arg-type]
            self.by.send(1, key="ann")  # type: ignore[arg-type]

        @on(by)
        def ignored(self, record: Record[int, UUID]) -> None: ...

    with pytest.raises(Exception, match=r"Output\('out'\): the key b'a' is of type bytes, it is declared with key=int"):
        Driver(Wrong).feed(1, key="a")
    with pytest.raises(Exception, match=r"Rekey\('by'\): the key 'ann' is of type str, it is declared with key=UUID"):
        Driver(Wrong).feed(0, key="a")


def test_the_partitioner_and_send_all_get_the_bytes() -> None:
    asked: list[bytes | None] = []

    def choose(key: bytes | None, partitions: int) -> int:
        asked.append(key)
        return partitions - 1

    class Many(Handler[int, int]):
        chosen = Output("chosen", value=int, key=int, partitioner=choose)
        many = Output("many", value=int, key=int)

        def on_record(self, record: Record[int, int]) -> None:
            self.chosen.send_all([1, 2], keys=[record.key, 8])
            self.many.send_all([1, 2], keys=[record.key, 8])

    driver = Driver(Many, output_partitions=3)
    driver.feed(1, key=7)
    assert [(each.key, each.partition) for each in driver.sent("chosen")] == [(b"7", 2), (b"8", 2)]
    assert [each.key for each in driver.sent("many")] == [b"7", b"8"]
    assert asked == [b"7", b"8"]


def test_a_request_has_the_typed_key() -> None:
    class Answering(Handler[int, int]):
        replies = Replies(str, keep=60)

        def on_record(self, record: Record[int, int]) -> None:
            record.reply(repr((record.key, record.request and record.request[0])))

    assert Driver(Answering).ask(1, 7) == "(7, b'7')"


def test_a_handler_with_replies_decodes_no_key_without_a_type() -> None:
    class Answering(Handler[int]):
        replies = Replies(str, keep=60)

        def on_record(self, record: Record[int]) -> None:
            assert not isinstance(record, KeyedRecord)
            record.reply(repr((record.key, record.raw_key)))

    driver = Driver(Answering)
    driver.feed(1, "ann")
    assert driver.ask(1, "ann") == "(b'ann', b'ann')"


def test_the_decoders_of_an_engine_without_names_are_those_of_its_methods() -> None:
    class Mixed(Handler[None]):
        @on("plain", value=int)
        def plain(self, record: Record[int]) -> None: ...

        @on("numbers", value=int, key=int)
        def number(self, record: Record[int, int]) -> None: ...

    keys = InputKeys(input_names(Mixed, None), key_types(Mixed, None))
    sent = [MergedMessage(MemoryMessage("t", 0, 0, b"1", b"7"), number, 0) for number in range(2)]
    assert keys.decode_all(sent, keys.given(sent)) == [b"7", 7]


def test_timers_keep_the_bytes() -> None:
    class Later(Handler[int, UUID]):
        fired = Table(key=str, value=int)

        def on_record(self, record: Record[int, UUID]) -> None:
            self.schedule(record.timestamp + 1, str(record.key))

        def on_timer(self, timer: Timer) -> None:
            self.fired[timer.payload] = 1

    driver = Driver(Later)
    driver.feed(1, key=ID, timestamp=1)
    driver.feed(1, key=ID, timestamp=5)
    driver.replay()
    assert driver.table("fired") == {str(ID): 1}


def test_the_type_is_found_through_generic_bases() -> None:
    class First(Handler[int, K], Generic[K]):
        pass

    class Second(First[K], Generic[K, V]):
        pass

    class Third(Second[UUID, str]):
        pass

    class Plain(Handler[V]):
        pass

    class Named(Plain[int]):
        pass

    names = Names("s", "x")
    assert key_types(class_of(Third), names) == {"x": UUID}
    assert key_types(Named, names) == {}
    assert key_types(Service("s", input="x", handler=Named, key=int).handler, names) == {"x": int}


T = TypeVar("T")
L = TypeVar("L")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    D = DefaultTypeVar("D", default=str)
else:
    D = TypeVar("D")
    D.has_default, D.__default__ = lambda: True, str  # as typing_extensions and Python 3.13 have it


class Pairs(msgspec.Struct, Generic[T], frozen=True):
    one: T


class OpenKey(Handler[Pair, K], Generic[K]): ...


class OfName(OpenKey[str]): ...


class Swapped(Handler[V, K], Generic[K, V]): ...


class Further(Handler[Pair, str], Generic[L]): ...


class Optionally(Handler[V, K | None], Generic[V, K]): ...


class Numbered(Handler[V, tuple[K, int]], Generic[V, K]): ...


class Noted(Handler[V, Annotated[K, Int64()]], Generic[V, K]): ...


class Paired(Handler[list[V], Pairs[K]], Generic[V, K]): ...


class Defaulted(Handler[V, D], Generic[V, D]): ...


class Plain(Defaulted): ...  # type: ignore[type-arg]


class Mixin(Handler[V, K], Generic[V, K]): ...


class Both(Mixin, OfName): ...  # type: ignore[type-arg]


class Unrelated(Generic[T]): ...


class Mixed(Unrelated[int], OpenKey[UUID]): ...


@pytest.mark.parametrize(("kind", "value", "key"), [
    (OpenKey, Pair, None),
    (OfName, Pair, str),
    (type("Sub", (OfName,), {}), Pair, str),
    (Swapped[str, Pair], Pair, str),
    (Further[int], Pair, str),
    (Optionally[Pair, str], Pair, str | None),
    (Numbered[Pair, str], Pair, tuple[str, int]),
    (Paired[int, str], list[int], Pairs[str]),
    (Defaulted[Pair], Pair, str),
    (Defaulted[Pair, UUID], Pair, UUID),
    (Plain, bytes, str),
    (Both, Pair, str),
    (Mixed, Pair, UUID),
    (Handler, bytes, None),
    (Handler[Pair], Pair, None),
])  # fmt: skip
def test_values_and_keys_have_the_types_that_a_type_checker_sees(kind: Any, value: Any, key: Any) -> None:
    class Found(kind): ...  # type: ignore[misc]

    assert (input_type(Found), key_type(Found)) == (value, key)


def test_a_key_type_within_another_one_is_the_one_that_was_given() -> None:
    class Long(Noted[Pair, int]):
        def on_record(self, record: Record[Pair, int]) -> None: ...

    Driver(Long).feed(Pair("ann", 1), key=7)

    class Left(Optionally):  # type: ignore[type-arg]
        def on_record(self, record: Record[Any, Any]) -> None: ...

    with pytest.raises(UsageError, match=r"Left: Handler\[\.\.\., KEY\]: keys .* leaves a type variable open"):
        Driver(Left)


def test_a_generic_class_of_the_user_needs_the_arguments_that_have_no_default() -> None:
    class Mine(Handler[V, K], Generic[V, K, T]): ...

    with pytest.raises(TypeError, match="arguments"):
        Mine[int, str]  # type: ignore[misc]


def test_a_service_gives_the_type_of_keys_that_its_handler_leaves_open() -> None:
    class Open(Handler[int]):
        seen = Table(key=int, value=int)

        def on_record(self, record: Record[int, Any]) -> None:
            self.seen[record.key] = record.value

    def made() -> Open:
        return Open()

    for handler in (Open, made):
        service = Service("s", input="x", handler=handler, key=Int64())
        driver = Driver(service.handler)
        driver.feed(4, key=7)
        assert driver.table("seen") == {7: 4}
        assert class_of(service.handler).__name__ == "Open"
    assert Service("s", input="x", handler=Open).handler is Open
    with pytest.raises(UsageError, match=r"Service\(key=str\): Typed declares keys of the type <class 'int'>"):
        Service("s", input="x", handler=keeping(int), key=str)


def test_a_service_does_not_replace_the_type_of_its_handler() -> None:
    given = Int64()
    other: list[tuple[Any, Any]] = [
        (str, str | None),
        (str, given),
        (int, given),
        (str | None, str),
        (str, bytes | None),
    ]
    same: list[tuple[Any, Any]] = [
        (str, str),
        (str | None, str | None),
        (Annotated[int, given], given),
        (str, AccountId),
    ]
    for own, key in other:
        with pytest.raises(UsageError, match=r"Service\(key=.*\): Typed declares keys of the type "):
            Service("s", input="x", handler=keeping(own), key=key)
    for own, key in same:
        Service("s", input="x", handler=keeping(own), key=key)


class Keyed(Handler[int]):
    """A handler whose class takes an argument, and that can be pickled."""

    seen: ClassVar[Table[int, str]] = Table(key=int, value=str)

    def __init_subclass__(cls, *, title: str, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)

    def on_record(self, record: Record[int, Any]) -> None:
        self.seen[record.offset] = f"{type(self).__name__}: {record.key!r}"


class Other(Keyed, title="another"): ...


def test_a_service_makes_no_class_to_give_its_type_of_keys() -> None:
    kinds = [Keyed, Keyed, Other]

    def made() -> Keyed:
        return kinds.pop(0)() if len(kinds) > 1 else kinds[0]()

    copied = pickle.loads(pickle.dumps(Service("s", input="x", handler=Keyed, key=int).handler))  # noqa: S301  made here
    for handler in (Keyed, copied):
        service = Service("s", input="x", handler=handler, key=int)
        assert class_of(service.handler) is Keyed
        driver = Driver(service.handler)
        driver.feed(1, key=7)
        assert driver.table("seen") == {0: "Keyed: 7"}
    factory = Service("s", input="x", handler=made, key=int).handler
    assert isinstance(factory(), Other)
    plain = Driver(Keyed)
    plain.feed(1, key=b"7")
    assert plain.table("seen") == {0: "Keyed: b'7'"}, "the class is as it was"


class Later(Handler[Any]):
    """Schedules a timer when a window closes, and when a record has no partner."""

    fired = Table(key=str, value=bytes | None)

    def on_window(self, name: str, key: Any, start: int, end: int, value: int) -> None:
        self.schedule(end + 1, "window")

    def on_unmatched(self, name: str, key: Any, side: str, value: Any, timestamp: int) -> None:
        self.schedule(timestamp + 1, "join")

    def on_timer(self, timer: Timer) -> None:
        self.fired[timer.payload] = timer.record_key


@pytest.mark.parametrize(
    ("kind", "table", "key", "data"),
    [
        (int, int, 7, b"7"),
        (int, str, "7", b"7"),
        (int, str, "all", b"all"),
        (str, int, 7, b"7"),
        (Int64(), int, 7, bytes(7) + b"\7"),
        (tuple[str, int], tuple[str, int], ("a", 1), b'["a",1]'),
    ],
)
def test_timers_of_windows_and_joins_have_the_bytes_of_their_records_key(
    kind: Any, table: Any, key: Any, data: bytes
) -> None:
    class Closing(Later, Handler[int, kind]):
        sums = Tumbling(10, key=table, value=int)
        pairs = JoinBuffer(10, key=table, left=int, right=int, join="outer")

        def on_record(self, record: Record[int, Any]) -> None:
            if record.value:
                self.sums.update(record, key, lambda total: (total or 0) + record.value)
                self.pairs.left(record, key, record.value)

    first: Any = key if table == kind or isinstance(kind, Int64) else b"7"
    driver = Driver(Closing)
    driver.feed(1, key=first, timestamp=1_000)
    for time in (100_000, 200_000):
        driver.feed(0, key=first, timestamp=time)
    assert driver.table("fired") == {"window": data, "join": data}
    driver.replay()


def test_the_bytes_of_a_tables_key_are_those_of_the_inputs_that_agree() -> None:
    keys = RecordKeys(["a", "b", "c"], {"b": Int64(), "c": AVRO})
    assert keys.of("ann") == b"ann"
    assert keys.of(7) is None, "a and b write it in different ways"
    assert keys.of(Pair("ann", 1)) is None, "the registry is not asked"
    assert RecordKeys(["a"], {"a": UUID}).of(str(ID)) == RecordKeys(["a"], {"a": UUID}).of(ID) == str(ID).encode()
    assert RecordKeys(["a"], {"a": UUID}).of("ann") is None
    assert RecordKeys(["a"], {"a": str | None}).of(None) is None
    assert RecordKeys(["a"], {}).of(("a", 1)) is None


def test_an_upgrade_feeds_keys_of_its_own_type() -> None:
    driver = Driver(keeping(int))
    driver.feed(1, key=7)
    driver.upgrade(keeping(Int64()))
    driver.feed(1, key=7)
    assert [record.key for record in driver.sent("out")] == [b"7", bytes(7) + b"\7"]


class Ledger(Handler[None]):
    """Takes no record, so all are dead letters."""

    on_failure: ClassVar = {ValueError: dead_letter()}

    @on("orders", value=int, key=int)
    def order(self, record: Record[int, int]) -> None:
        raise ValueError

    @on("refunds", value=int, key=Int64())
    def refund(self, record: Record[int, int]) -> None:
        raise ValueError


def test_dead_letters_are_released_by_the_key_of_their_input() -> None:
    def fed() -> Driver:
        driver = Driver(Ledger)
        for name in ("orders", "refunds", "refunds"):
            driver.feed(1, key=7, input=name)
        driver.commit()
        return driver

    assert fed().release(7, discard=True) == 1
    assert fed().release(7, discard=True, input="orders") == 1
    assert fed().release(7, discard=True, input="refunds") == 2
    assert fed().release(discard=True, input="refunds") == 2
    assert fed().release(bytes(7) + b"\7", discard=True) == 2
    assert fed().release(discard=True) == 3


def test_the_simulated_cluster_writes_typed_keys() -> None:
    with SimulatedCluster(Inputs, processes=2, partitions=2) as cluster:
        cluster.feed(5, key=77, partition=1, input="numbers")
        cluster.run()
        cluster.kill("a")
        cluster.feed(6, key=77, partition=1, input="numbers")
        cluster.run()
