"""What a handler reads live is what it reads after a restore: a value that only equals it is rejected in every mode."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold import Handler, JoinBuffer, Output, Record, Table, Tumbling
from statehold.api.values.serde import Json
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, UnstorableValue, UsageError
from statehold.testing import Driver

BERLIN = ZoneInfo("Europe/Berlin")
MODES = {mode: Settings(service=ServiceSettings(mode=mode)) for mode in ("production", "development")}


class Level(IntEnum):
    LOW = 1


class Side(StrEnum):
    BUY = "buy"


class Colour(Enum):
    RED = "red"


class Price(msgspec.Struct, frozen=True):
    x: float


class Detailed(Price, frozen=True):
    more: int = 0


class Inside(msgspec.Struct, frozen=True):
    price: Price
    prices: tuple[Price, ...] = ()
    by_name: Any = None


class Plain(msgspec.Struct, frozen=True):
    given: Any


@dataclasses.dataclass(frozen=True)
class Data:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    a: int
    b: float


class Tree(msgspec.Struct, frozen=True):
    value: float
    children: tuple[Tree, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    x: float

    def __post_init__(self) -> None:
        if self.x > 10:
            raise ValueError("too large")


class Typed(TypedDict):
    x: int


@dataclasses.dataclass(frozen=True)
class Doubling:
    x: int

    @cached_property
    def double(self) -> int:
        return 2 * self.x


class Open(msgspec.Struct, frozen=True, dict=True):
    x: int


class Unset(msgspec.Struct, frozen=True):
    x: int | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass(frozen=True)
class Chain:
    x: int
    rest: Chain | None = None


def doubled(x: int) -> Doubling:
    """Its property has been read."""
    made = Doubling(x)
    assert made.double == 2 * x
    return made


def opened() -> Open:
    made = Open(1)
    vars(made)["more"] = 5
    return made


def chain(last: Any) -> Any:
    """Nested more deeply than repr follows."""
    made = Chain(last)
    for number in range(400):
        made = Chain(number, made)
    return made


NOW = datetime(2026, 3, 1, 9, tzinfo=BERLIN)
Positive = Annotated[int, msgspec.Meta(ge=0, le=9)]
Short = Annotated[str, msgspec.Meta(max_length=3, pattern="^a")]

#: type of the values, what is put, and what the error names
LOOK_ALIKES: list[tuple[Any, Any, str]] = [
    (Price, Price(1), r"\.x is 1 \(int\) and would be 1\.0 \(float\)"),
    (float, 1, r"the value is 1 \(int\)"),
    (float, True, "would not come back as"),
    (int, True, "would not come back as"),
    (int, Level.LOW, r"<Level\.LOW: 1> \(Level\) and would be 1 \(int\)"),
    (str, Side.BUY, r"Side\.BUY"),
    (Price, Detailed(1.0, 5), r"Detailed\(x=1\.0, more=5\) \(Detailed\) and would be Price\(x=1\.0\) \(Price\)"),
    (Inside, Inside(Price(1)), r"\.price\.x is 1 "),
    (Inside, Inside(Price(1.0), (Price(1.0), Price(2))), r"\.prices\[1\]\.x is 2 "),
    (Inside, Inside(Price(1.0), [Price(1.0)]), r"\.prices is \["),  # type: ignore[arg-type]
    (bytes, bytearray(b"x"), "bytearray"),
    (datetime, NOW, r"hour=9|9, 0|Europe/Berlin"),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1), "fold=1"),  # noqa: DTZ001  naive on purpose
    (datetime, datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")), "UTC"),
    (time, time(2, 30, fold=1), "fold=1"),
    (Plain, Plain((1, 2)), r"\.given is \(1, 2\) \(tuple\) and would be \[1, 2\] \(list\)"),
    (Plain, Plain([{"a": (1,)}]), r"\.given\[0\]\['a'\] is \(1,\)"),
    (Plain, Plain(Price(1.0)), r"\.given is Price"),
    (Plain, Plain(Decimal("1.0")), "Decimal"),
    (Plain, Plain(Colour.RED), "Colour"),
    (Colour, "red", r"the value is 'red' \(str\)"),
    (int | float, Level.LOW, "Level"),
    (tuple[int, float], (1, 1), r"\[1\] is 1 \(int\)"),
    (tuple[int, float], Pair(1, 1.0), "Pair"),
    (Pair, Pair(1, 1), r"\.b is 1 \(int\)"),
    (Data, Data(1, 1), r"\.y is 1 \(int\)"),
    (Tree, Tree(1.0, (Tree(1.0, (Tree(1),)),)), r"\.children\[0\]\.children\[0\]\.value is 1 "),
    (Positive, -1, "would not come back as"),
    (Positive, 10, "would not come back as"),
    (Short, "b", "would not come back as"),
    (Checked, Checked(1), r"\.x is 1 \(int\)"),
    (Json(float), float("nan"), "would not come back|nan"),
    (Json(datetime), NOW, "Europe/Berlin"),
    (dict[str, float], {"a": 1}, r"\['a'\] is 1 \(int\)"),
    (list[float], [1.0, 1], r"\[1\] is 1 \(int\)"),
    (Typed, {"x": 1, "y": 2}, "'y': 2"),
    (frozenset[int], frozenset((1, Level.LOW, 2.0)), "would"),
    (frozenset[tuple[float, ...]], frozenset({(1,)}), r"\{\(1,\)\}\[0\] is 1 \(int\) and would be 1\.0 "),
    (frozenset[Price], frozenset({Price(1.0), Price(2)}), r"\{Price\(x=2\)\}\.x is 2 \(int\)"),
    (frozenset[datetime], frozenset({datetime(2026, 10, 25, 2, 30, fold=1)}), "fold=1"),  # noqa: DTZ001
    (frozenset[datetime], frozenset({NOW}), "Europe/Berlin"),
    (Json(dict[int | str, int]), {1: 1}, r"is \{1: 1\} \(dict\) and would be \{'1': 1\}"),
    (Json(dict[tuple[int, int], int]), {(1, 1): 1}, "cannot be encoded"),
    (Chain | Any, Chain(1), r"is Chain\(x=1, rest=None\) \(Chain\) and would be \{"),
    (UUID | Any, UUID(int=7), r"UUID\('.*'\) \(UUID\) and would be '"),
    (Open, opened(), r"\.more is 5 \(int\) and would be absent"),
    (Unset, Unset(None), r"UNSET|None|would not come back"),  # type: ignore[arg-type]
    (int, 10**5000, "cannot be encoded"),
    (Chain, chain(True), r"would not come back as"),
    (memoryview, memoryview(bytearray(b"x")), "memory"),
]

#: what is stored as it is
SAME: list[tuple[Any, Any]] = [
    (Price, Price(1.0)),
    (Price, Price(float("nan"))),
    (Price, Price(-0.0)),
    (Inside, Inside(Price(1.0), (Price(2.0),), {"a": [1, None, True, 1.5, "b"]})),
    (datetime, datetime(2026, 3, 1, tzinfo=UTC)),
    (datetime, datetime(2026, 3, 1, 1, 2, 3, 4)),  # noqa: DTZ001  naive on purpose
    (date, date(2026, 3, 1)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=-1, microseconds=5)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=7)),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Side, Side.BUY),
    (int | str | None, None),
    (int | str | None, "a"),
    (Price | None, Price(2.0)),
    (Pair, Pair(1, 1.0)),
    (Data, Data(1, 1.0)),
    (Tree, Tree(1.0, (Tree(2.0, (Tree(3.0),)),))),
    (Positive, 5),
    (Short, "abc"),
    (Checked, Checked(1.0)),
    (frozenset[str], frozenset("abc")),
    (tuple[()], ()),
    (bytes, b"x"),
    (Json(Price), Price(1.5)),
    (dict[str, float], {"b": 1.0, "a": 2.0}),
    (list[float], [1.0]),
    (Typed, {"x": 1}),
    (dict[float, Any], {float("nan"): [b"x"]}),
    (frozenset[Checked], frozenset({Checked(float("nan"))})),
    (Doubling, doubled(4)),
    (Open, Open(1)),
    (Unset, Unset()),
    (Json(dict[str, int]), {"1": 1}),
    (Json(dict[int, int]), {1: 1}),
    (int, 2**64 - 1),
    (Json(int), 10**1000),
]

#: what is stored as it is though its repr is another one each time, and what it consists of
WITHOUT_REPR: list[tuple[Any, Any, Callable[[Any], object]]] = [
    (msgspec.Raw, msgspec.Raw(msgspec.msgpack.encode({"a": 1})), bytes),
    (memoryview, memoryview(b"abc"), bytes),
    (msgspec.msgpack.Ext, msgspec.msgpack.Ext(3, b"ab"), lambda value: (value.code, value.data)),
    (Chain, chain(1), msgspec.msgpack.encode),
]


def storing(kind: Any, value: Any) -> type[Handler[bytes]]:
    """A handler that puts this value."""

    class Storing(Handler[bytes]):
        kept = Table(key=str, value=kind, mutable=True)

        def on_record(self, record: Record[bytes]) -> None:
            self.kept["a"] = value

    return Storing


def handle(driver: Driver, value: Any, timestamp: int | None = None) -> None:
    driver.feed(value, timestamp=timestamp)
    driver.commit()


def immutable(kind: Any) -> bool:
    try:
        Table(key=str, value=kind)
    except UsageError:
        return False
    return True


def storing_frozen(kind: Any, value: Any) -> type[Handler[bytes]]:
    class Storing(Handler[bytes]):
        kept = Table(key=str, value=kind)

        def on_record(self, record: Record[bytes]) -> None:
            self.kept["a"] = value

    return Storing


def ids(rows: list[Any]) -> list[str]:
    return [f"{number}-{getattr(row[0], '__name__', type(row[0]).__name__)}" for number, row in enumerate(rows)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "value", "named"), LOOK_ALIKES, ids=ids(LOOK_ALIKES))
def test_a_value_that_only_equals_what_comes_back_is_rejected(kind: Any, value: Any, named: str, mode: str) -> None:
    made = storing_frozen if immutable(kind) else storing
    driver = Driver(made(kind, value), settings=MODES[mode])
    if made is storing and mode == "production":
        # A mutable table keeps a copy, which is what would come back; what has no copy is the handler's error.
        try:
            handle(driver, b"")
        except HandlerFailed:
            return
        live = driver.table("kept")["a"]
        driver.crash()
        driver.restore()
        assert repr(driver.table("kept")["a"]) == repr(live)
        return
    with pytest.raises((UnstorableValue, HandlerFailed), match=named) as raised:
        handle(driver, b"")
    assert "table 'kept'" in str(raised.value)
    assert "key 'a'" in str(raised.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "value"), SAME, ids=ids(SAME))
def test_a_value_that_comes_back_is_stored(kind: Any, value: Any, mode: str) -> None:
    driver = Driver((storing_frozen if immutable(kind) else storing)(kind, value), settings=MODES[mode])
    driver.feed(b"")
    driver.commit()
    driver.crash()
    driver.restore()
    back = driver.table("kept")["a"]
    assert type(back) is type(value)
    assert repr(back) == repr(value) or isinstance(value, frozenset)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "value", "content"), WITHOUT_REPR, ids=ids(WITHOUT_REPR))
def test_a_value_whose_repr_says_nothing_is_stored(
    kind: Any, value: Any, content: Callable[[Any], object], mode: str
) -> None:
    driver = Driver(storing_frozen(kind, value), settings=MODES[mode])
    driver.feed(b"")
    driver.commit()
    driver.crash()
    driver.restore()
    assert content(driver.table("kept")["a"]) == content(value)


@pytest.mark.parametrize("mode", MODES)
def test_a_class_of_attrs_is_stored_as_it_is_or_not_at_all(mode: str) -> None:
    attrs = pytest.importorskip("attrs")
    point = attrs.make_class("Point", {"x": attrs.field(type=int)}, frozen=True, slots=True)
    hidden = attrs.make_class("Hidden", {"_x": attrs.field(type=int)}, frozen=True, slots=True)
    changing = attrs.make_class("Changing", {"x": attrs.field(type=int)}, slots=True)
    for each, name in ((point, "x"), (hidden, "_x"), (changing, "x")):
        each.__annotations__ = {name: int}

    driver = Driver(storing_frozen(point, point(1)), settings=MODES[mode])
    handle(driver, b"")
    driver.crash()
    driver.restore()
    assert driver.table("kept")["a"] == point(1)
    with pytest.raises((UnstorableValue, HandlerFailed), match="missing required field `_x`"):
        handle(Driver(storing_frozen(hidden, hidden(1)), settings=MODES[mode]), b"")
    with pytest.raises(UsageError, match="Changing can be changed in place"):
        Table(key=str, value=changing)


class Totals(msgspec.Struct, frozen=True):
    last: float | int | str | None
    seen: tuple[float | int | str | None, ...] = ()


class Shows(Handler[Any]):
    """Its outputs show the types of what it has stored."""

    kept = Table(key=str, value=Totals)
    shown = Output("shown", value=str)

    def on_record(self, record: Record[Any]) -> None:
        before = self.kept.get("a", Totals(None))
        self.shown.send(repr(before))
        self.kept["a"] = Totals(record.value, (*before.seen, record.value)[-3:])


@given(st.lists(st.one_of(st.integers(-9, 9), st.floats(), st.text(max_size=3)), max_size=8), st.data())
def test_handlers_give_the_same_outputs_live_and_after_restores(values: list[Any], data: st.DataObject) -> None:
    steady, crashing = Driver(Shows), Driver(Shows)
    for value in values:
        steady.feed(value)
        crashing.feed(value)
        if data.draw(st.booleans()):
            crashing.commit()
            crashing.crash()
            crashing.restore()
    assert steady.outputs(Shows.shown) == crashing.outputs(Shows.shown)


class Stamped(msgspec.Struct, frozen=True):
    at: datetime


class Joined(Handler[Stamped]):
    pairs = JoinBuffer(60, key=str, left=Stamped, right=Price)

    def on_record(self, record: Record[Stamped]) -> None:
        self.pairs.left(record, "a")


class Windowed(Handler[bytes]):
    sums = Tumbling(60, key=str, value=float)

    def on_record(self, record: Record[bytes]) -> None:
        self.sums.update(record, "a", lambda before: (before or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: float) -> None:
        """Nothing closes here."""


@pytest.mark.parametrize("mode", MODES)
def test_joins_and_windows_reject_them_too(mode: str) -> None:
    driver = Driver(Joined, settings=MODES[mode])
    with pytest.raises((UnstorableValue, HandlerFailed), match=r"table 'pairs'.*\.left\.at is "):
        handle(driver, Stamped(datetime(2026, 3, 1, 9, tzinfo=BERLIN)), timestamp=1)
    windows = Driver(Windowed, settings=MODES[mode])
    with pytest.raises(
        (UnstorableValue, HandlerFailed), match=r"table 'sums'.* is 1 \(int\) and would be 1\.0 \(float\)"
    ):
        handle(windows, b"", timestamp=1)


class Asking(Handler[bytes]):
    asked = Table(key=str, value=str)

    def on_record(self, record: Record[bytes]) -> None:
        self.effect(self.note, (1, 2), {"a": b"x"})

    def note(self, key: Any, *arguments: Any) -> None:
        self.heard.append(arguments)

    def __init__(self) -> None:
        self.heard: list[Any] = []


def test_an_effect_gets_its_arguments_from_their_bytes_live_too() -> None:
    driver = Driver(Asking, run_effects=True)
    driver.feed(b"")
    driver.commit()
    assert driver.handler().heard == [([1, 2], {"a": b"x"})]  # type: ignore[attr-defined]


class Threaded(Handler[bytes]):
    kept = Table(key=str, value=int)

    def on_record(self, record: Record[bytes]) -> None:
        self.kept["a"] = 1


USES: dict[str, Callable[[Any], object]] = {
    "get": lambda table: table.get("a"),
    "[]": lambda table: table["a"],
    "in": lambda table: "a" in table,
    "len": len,
    "iter": list,
    "set": lambda table: table.__setitem__("a", 2),
    "put": lambda table: table.put("a", 2),
    "delete": lambda table: table.delete("a"),
}


@pytest.mark.parametrize("use", USES)
def test_a_table_on_another_thread_is_rejected_in_development(use: str) -> None:
    driver = Driver(Threaded)
    driver.feed(b"")
    table = driver.handler().kept  # type: ignore[attr-defined]
    heard: list[str] = []

    def run() -> None:
        try:
            USES[use](table)
        except UsageError as error:
            heard.append(str(error))

    thread = threading.Thread(target=run, name="stranger")
    thread.start()
    thread.join()
    assert len(heard) == 1
    assert "table 'kept' belongs to thread 'MainThread' and was used on thread 'stranger'" in heard[0]


def test_names_of_fields_do_not_become_code() -> None:
    """A class may be made from a schema of another party."""
    with pytest.raises(TypeError, match="identifiers"):
        msgspec.defstruct("Strange", [("x or 1/0", int)])
    named: Any = msgspec.defstruct("Named", [("print", int), ("UTC", float)], frozen=True)
    driver = Driver(storing_frozen(named, named(1, 1)))
    with pytest.raises((UnstorableValue, HandlerFailed), match=r"\.UTC is 1 \(int\)"):
        handle(driver, b"")
