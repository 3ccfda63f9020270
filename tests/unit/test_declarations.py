"""A declaration that would lose input or write what no reader can decode is rejected before the service starts."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from statehold import Dedupe, Handler, Output, Record, Service, Session, Table, on, retry
from statehold.api.handler import HOOKS
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, UsageError
from statehold.testing import Driver


async def coroutine(*_: Any) -> None:
    raise AssertionError


def generator(*_: Any) -> Any:
    yield


async def stream(*_: Any) -> Any:
    yield


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("function", "text"), [(coroutine, "is async"), (generator, "is a generator"), (stream, "is async")]
)
def test_a_hook_whose_body_would_not_run_is_rejected(hook: str, function: Callable[..., Any], text: str) -> None:
    with pytest.raises(UsageError, match=rf"Late\.{hook} {text}"):
        type("Late", (Handler,), {hook: function})


def test_a_hook_that_a_base_class_gives_is_checked() -> None:
    class Mixin:
        async def on_record(self, record: Record[int]) -> None: ...

    with pytest.raises(UsageError, match=r"Mixed\.on_record is async"):
        type("Mixed", (Mixin, Handler), {})


def test_a_handler_that_handles_nothing_is_rejected() -> None:
    class Idle(Handler[int]):
        seen = Table(key=int, value=int)

    with pytest.raises(UsageError, match="Idle has neither on_record nor on_batch"):
        Driver(Idle)


@pytest.mark.parametrize("function", [generator, stream])
def test_an_effect_whose_body_would_not_run_is_rejected(function: Callable[..., Any]) -> None:
    class Calling(Handler[int]):
        def on_record(self, record: Record[int]) -> None:
            self.effect(function)

    with pytest.raises(HandlerFailed, match=f"'{function.__name__}' is a generator"):
        Driver(Calling).feed(1)


def test_an_upcaster_whose_body_would_not_run_is_rejected() -> None:
    for upcaster in (coroutine, (int, coroutine)):
        with pytest.raises(UsageError, match="upcaster of version 1 is async"):
            Table(key=int, value=int, version=2, upcasters={1: upcaster})


class Reply(msgspec.Struct, frozen=True, tag=True):
    amount: int
    note: str = ""


class Other(msgspec.Struct, frozen=True, tag=True):
    amount: int


def sending(send: Callable[[Any, Any], None], value: Any = Reply) -> type[Handler[int]]:
    class Sending(Handler[int]):
        out = Output("out", value=value)

        def on_record(self, record: Record[int]) -> None:
            send(self.out, record.value)

    return Sending


PRODUCTION = Settings(service=ServiceSettings(mode="production"))
WRONG = [Other(1), {"amount": 1}, None, 5, Reply]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("settings", [None, PRODUCTION])
@pytest.mark.parametrize("many", [False, True])
def test_a_value_of_another_struct_is_not_sent(value: Any, settings: Settings | None, many: bool) -> None:
    def send(output: Any, _: int) -> None:
        output.send_all([Reply(1), value]) if many else output.send(value)

    driver = Driver(sending(send), settings=settings)
    with pytest.raises(HandlerFailed, match=r"Output\('out'\).*declared with value=Reply"):
        driver.feed(1)
    assert driver.outputs("out") == []


@pytest.mark.parametrize("value", [Reply(1), Other(1), None])
def test_a_value_of_a_declared_struct_is_sent(value: Any) -> None:
    for settings in (None, PRODUCTION):
        driver = Driver(sending(lambda output, _: output.send(value), Reply | Other | None), settings=settings)
        driver.feed(1)
        assert len(driver.sent("out")) == 1


def test_in_development_a_field_of_a_wrong_type_is_named() -> None:
    wrong: Any = "much"
    for kind, value in ((Reply, Reply(wrong)), (list[Reply], [Reply(1), Reply(wrong)]), (int | float, wrong)):
        driver = Driver(sending(lambda output, _, value=value: output.send(value), kind))  # type: ignore[misc]
        with pytest.raises(HandlerFailed, match=r"a reader of .*much.* would fail: Expected `int"):
            driver.feed(1)


def test_two_outputs_of_different_types_on_one_topic_are_rejected() -> None:
    class Two(Handler[int]):
        first = Output("out", value=Reply)
        second = Output("out", value=Other)

        def on_record(self, record: Record[int]) -> None: ...

    with pytest.raises(UsageError, match="'first' and 'second' write different types to the topic 'out'"):
        Driver(Two)

    class Same(Handler[int]):
        first = Output("out", value=Reply)
        second = Output("out", value=Reply)

        def on_record(self, record: Record[int]) -> None: ...

    Driver(Same)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Named(StrEnum):
    RED = "red"


class Numbered(IntEnum):
    RED = 1


class Unordered(msgspec.Struct, frozen=True):
    number: int


class Ordered(msgspec.Struct, frozen=True, order=True):
    number: int


class OrderedColour(msgspec.Struct, frozen=True, order=True):
    colour: Colour


class Pair(NamedTuple):
    name: str
    number: int


IN_ORDER: tuple[Callable[[Any], Any], ...] = (
    lambda key: Dedupe(key=key, ttl=10),
    lambda key: Table(key=key, value=int, ttl=10),
    lambda key: Table(key=key, value=int, sorted=True),
)


@pytest.mark.parametrize("declare", IN_ORDER)
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (Colour, "Colour has no order: use StrEnum or IntEnum"),
        (tuple[str, Colour], "Colour has no order: use StrEnum or IntEnum"),
        (OrderedColour, "Colour has no order: use StrEnum or IntEnum"),
        (Unordered, "Unordered has no order: declare it with order=True"),
        (Literal["a", 1], "literal has no order: use str, int, bytes or a tuple of them"),
    ],
)
def test_a_key_without_an_order_is_rejected_where_the_table_compares_keys(
    declare: Callable[[Any], Any], key: Any, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        declare(key)
    Table(key=key, value=int)


@pytest.mark.parametrize("declare", IN_ORDER)
@pytest.mark.parametrize("key", [Named, Numbered, Ordered, Pair, Literal["a", "b"], tuple[Named, int]])
def test_a_key_with_an_order_is_accepted(declare: Callable[[Any], Any], key: Any) -> None:
    declare(key)


@pytest.mark.parametrize("settings", [{"kafka": {}}, "service.toml"])
def test_a_service_names_what_it_takes_as_settings(settings: Any) -> None:
    advice = r"from statehold.config import load, and settings=load\(overrides="
    with pytest.raises(UsageError, match=f"settings is a {type(settings).__name__}. Next: {advice}"):
        Service("counts", input="orders", handler=Handler, settings=settings)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("on_record", lambda self: None, "self, record"),
        ("on_batch", lambda self, records, more: None, "self, records"),
        ("on_window", lambda self, key, start, end, value: None, "self, name, key, start, end, value"),
        ("on_unmatched", lambda self, name, key, side, value: None, "self, name, key, side, value, timestamp"),
        ("on_late", lambda self, record: None, "self, name, key, record"),
        ("on_timer", lambda self: None, "self, timer"),
        ("on_command", lambda self, record: None, "self, command, record"),
        ("on_stop", lambda self, why: None, "self"),
        ("on_timer", staticmethod(lambda self, timer: None), "timer"),
    ],
)
def test_a_hook_with_other_parameters_is_rejected_with_its_class(name: str, wrong: Any, right: str) -> None:
    with pytest.raises(UsageError, match=rf"Wrong.{name} takes .* Next: def {name}\({right}\)"):
        type("Wrong", (Handler,), {name: wrong})


@pytest.mark.parametrize(
    "hook",
    [
        lambda self, timer, more=None: None,
        lambda *arguments: None,
        lambda me, due: None,
        staticmethod(print),
        staticmethod(dict),  # it has no signature
    ],
)
def test_a_hook_that_the_call_fits_is_accepted(hook: Any) -> None:
    type("Right", (Handler,), {"on_timer": hook})


def test_a_method_of_an_input_with_other_parameters_is_rejected() -> None:
    def price(self: Handler[int]) -> None: ...

    with pytest.raises(UsageError, match=r"price takes .* Next: def price\(self, record\)"):
        on("prices", value=int)(price)  # type: ignore[arg-type]


def nothing() -> None: ...


def pair(one: Any, two: Any) -> Any: ...


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "upcaster": (lambda f: Table(key=int, value=int, version=2, upcasters={1: f}), "the upcaster of version 1", 1),
    "upcaster with a type": (
        lambda f: Table(key=int, value=int, version=2, upcasters={1: (str, f)}),
        "the upcaster of version 1",
        1,
    ),
    "partitioner": (lambda f: Output("out", value=int, partitioner=f), r"Output\('out'\): the partitioner", 2),
    "merge": (lambda f: Session(60, key=str, value=int, merge=f), "Session: merge", 2),
    "wait": (lambda f: retry(3, wait=f), r"retry\(wait=...\)", 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_other_parameters_is_rejected_where_it_is_declared(name: str) -> None:
    declare, text, arguments = FUNCTIONS[name]
    wrong: list[Any] = [nothing, pair if arguments == 1 else str.upper]
    for function in wrong:
        with pytest.raises(UsageError, match=f"{text} takes .*statehold calls it with {arguments} argument"):
            declare(function)
    with pytest.raises(UsageError, match=f"{text} takes .* Next: lambda "):
        declare(lambda: None)
    with pytest.raises(UsageError, match=f"{text} is 5, and it has to be a function"):
        declare(5)
    declare(lambda *arguments: None)
