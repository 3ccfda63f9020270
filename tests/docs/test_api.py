"""The API reference has every public name, and the examples of the docstrings run."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import textwrap
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta  # noqa: F401  the examples use it
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args

import msgspec
import pytest

import statehold
from statehold import (
    Call,
    CallResult,
    Client,
    Dedupe,
    Handler,
    JoinBuffer,
    Json,
    Output,
    Record,
    Reference,
    Rekey,
    Replies,
    Retired,
    Table,
    Tumbling,
    dead_letter,
    on,
    ops,
    retry,
    testing,
)
from statehold.api import failures
from statehold.api.values import schema
from statehold.asgi import client_of, lifespan, stream_changes
from statehold.errors import StateholdError, UndecodableRecord
from statehold.testing import Driver

API = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api"
#: public names by module; `statehold.errors` has a test of its own
PUBLIC: dict[str, set[str]] = {
    "statehold": set(statehold.__all__) - {"StateholdError"},
    "statehold.testing": set(testing.__all__),
    "statehold.dev": set(importlib.import_module("statehold.dev").__all__),
    "statehold.config": {"Settings", "SettingsError", "load"},
    "statehold.ops": set(ops.__all__),
    "statehold.spark": {"StateholdSource", "views"},
    "statehold.asgi": {"lifespan", "client_of", "answer_errors", "status_of", "stream_changes"},
}
#: members without underscore that are no part of the API, and why
INTERNAL = {
    "statehold.Record": {"message"},  # Kafka's client
    "statehold.Registered": {"for_topic", "check_output", "check_input"},  # for other modules
    "statehold.Registry": {"client"},  # the registry's client
    "statehold.Client": {"settings", "names"},  # its arguments
    "statehold.Policy": None,  # its fields are the arguments of the functions
    "statehold.config.Settings": None,  # docs/reference/settings.md
    "statehold.config.SettingsError": None,
    "statehold.spark.StateholdSource": None,  # PySpark calls them
}


def documented() -> set[str]:
    pages = "".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    found = re.findall(r"^## `(\w+)`\n\n`from (\S+) import (\w+)`$", pages, re.MULTILINE)
    assert all(heading == name for heading, _, name in found)
    return {f"{module}.{name}" for _, module, name in found}


def test_every_member_has_a_heading() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    shown = set(re.findall(r"^##+ `(\S+)`$", pages, re.MULTILINE))
    assert {
        name for name in anchors() if not {name.rpartition(".")[2], ".".join(name.split(".")[-2:])} & shown
    } == set()


@pytest.mark.parametrize("module", ["statehold", "statehold.ops"])
def test_type_checkers_see_every_name_that_is_imported_at_its_first_use(module: str) -> None:
    door = importlib.import_module(module)
    tree = ast.parse(Path(str(door.__file__)).read_text(encoding="utf-8"))
    (seen,) = (each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    names = {alias.name for each in seen.body if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert names == set(door.__all__)
    assert all(hasattr(door, name) for name in names)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module: str) -> None:
    wanted = {f"{module}.{name}" for name in PUBLIC[module]}
    assert wanted - documented() == set()


def test_an_entry_is_a_public_name() -> None:
    known = {f"{module}.{name}" for module, names in PUBLIC.items() for name in names}
    assert documented() - known == errors()


def members(name: str) -> set[str]:
    """Return the members of a public class that its entry must show, as anchors of the page."""
    module, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    hidden = INTERNAL.get(name, set())
    if not isinstance(kind, type) or hidden is None:
        return set()
    own = [base for base in kind.__mro__ if base.__module__.startswith("statehold") and base is not Table]
    return {each for base in own for each in vars(base) if not each.startswith("_")} - hidden


def errors() -> set[str]:
    """Return every error, by the name with its module."""
    module = importlib.import_module("statehold.errors")
    kinds = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {f"statehold.errors.{name}" for name, kind in kinds.items() if issubclass(kind, StateholdError)}


def anchors() -> set[str]:
    """Return what the pages must show: every public name, every error, and their members."""
    names = {f"{module}.{name}" for module, each in PUBLIC.items() for name in each} | errors()
    operators = {"__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__"}
    table = {name for name in vars(Table) if not name.startswith("_")} | operators
    shown = names | {f"{name}.{member}" for name in names for member in members(name)}
    return shown | {f"statehold.Table.{name}" for name in table}


class Order(msgspec.Struct, frozen=True):
    post_id: str = ""
    symbol: str = ""
    reference: str = ""


class Payment(msgspec.Struct, frozen=True, tag=True):
    reference: str


class Invoice(msgspec.Struct, frozen=True, tag=True):
    reference: str


class Paid(msgspec.Struct, frozen=True):
    payment: Payment
    invoice: Invoice


def example(named: Any) -> str:
    """Return the indented blocks of a docstring."""
    blocks = [each for each in (inspect.getdoc(named) or "").split("\n\n") if each.startswith("    ")]
    return textwrap.dedent("\n\n".join(blocks)).strip()


def handler_of(named: Any, value: Any, **names: Any) -> type[Handler[Any]]:
    """Return a handler whose body is the example; `names` are those that the example leaves to its reader."""
    outputs = {name: each for name, each in names.items() if isinstance(each, Output)}
    namespace = {**globals(), **names, "Value": value, "Outputs": type("Outputs", (), outputs)}
    source = f"class Example(Outputs, Handler[Value]):\n{textwrap.indent(example(named), '    ')}\n"
    exec(source, namespace)  # noqa: S102  because the example is the subject
    made: type[Handler[Any]] = namespace["Example"]
    return made


def test_the_example_of_dedupe() -> None:
    class Counting(handler_of(Dedupe, Order)):  # type: ignore[misc]
        ids = Table(key=str, value=int)

    driver = Driver(Counting)
    for _ in range(2):
        driver.feed(Order("a"))
    assert set(driver.table("posts")) == {"a"}


def test_the_example_of_a_retired_table() -> None:
    class Using(Handler[Order]):
        balances = Table(key=str, value=Order)

        def on_record(self, record: Record[Order]) -> None:
            self.balances["ann"] = record.value

    class Without(handler_of(Retired, Order)):  # type: ignore[misc]
        def on_record(self, record: Record[Order]) -> None:
            """Use no table."""

    driver = Driver(Using)
    driver.feed(Order("a"))
    driver.upgrade(Without)
    driver.upgrade(Using)
    assert set(driver.table("balances")) == {"ann"}


def test_the_example_of_reference_data() -> None:
    driver = Driver(handler_of(Reference, Order, Price=int))
    driver.publish("prices", "ACME", 7)
    driver.feed(Order(symbol="ACME"))
    assert driver.position() == 1


def test_the_example_of_windows() -> None:
    kind = handler_of(
        Tumbling, Order, Candle=int, with_trade=lambda candle, _: (candle or 0) + 1, closed=Output("closed", value=int)
    )
    driver = Driver(kind)
    for seconds in (0, 30, 90):
        driver.feed(Order(symbol="ACME"), timestamp=seconds * 1000)
    assert driver.outputs("closed") == [2]


def test_the_example_of_joins() -> None:
    outputs = {"paid": Output("paid", value=Paid), "open": Output("open", value=Payment | Invoice)}
    driver = Driver(handler_of(JoinBuffer, Payment | Invoice, **outputs))
    day = 24 * 3_600_000
    driver.feed(Payment("a"), timestamp=0)
    driver.feed(Invoice("a"), timestamp=day)
    driver.feed(Invoice("b"), timestamp=day)
    driver.feed(Invoice("c"), timestamp=9 * day)
    assert driver.outputs("paid") == [Paid(Payment("a"), Invoice("a"))]
    assert driver.outputs("open") == [Invoice("b")]


def test_the_example_of_methods_for_inputs() -> None:
    class Price(msgspec.Struct, frozen=True):
        bid: int

    driver = Driver(handler_of(on, Any, Price=Price), inputs=["prices"])
    driver.feed(Price(1))
    assert driver.position() == 1


def test_the_example_of_failure_policies() -> None:
    namespace = {**globals(), "Payment": Json(), "BankDown": ConnectionError}
    exec(example(failures), namespace)  # noqa: S102  because the example is the subject
    policies: Any = namespace["Payments"]
    assert policies.on_failure == {
        ConnectionError: retry(5, seconds=0.2).then(dead_letter()),
        UndecodableRecord: dead_letter(),
    }


def test_the_example_of_the_driver() -> None:
    class Clearing(Handler[Order]):
        fills = Output("fills", value=Order)
        positions = Table(key=str, value=Order)

        def on_record(self, record: Record[Order]) -> None:
            self.positions["ann"] = record.value
            self.fills.send(record.value)

    made = lambda *_: Order("a")  # noqa: E731
    namespace: dict[str, Any] = {**globals(), "Clearing": Clearing} | dict.fromkeys(("Trade", "Fill", "Position"), made)
    exec(example(Driver).partition("\n\n")[0], namespace)  # noqa: S102  because the example is the subject
    assert namespace["driver"].table("positions")["ann"] == Order("a")


def test_the_example_of_calls() -> None:
    class Charge(msgspec.Struct, frozen=True):
        card: str

    def ask_scorer(name: str, charge: Charge) -> int:
        return len(charge.card)

    made: Any = handler_of(Call, Charge, Payment=Charge, Score=int, ask_scorer=ask_scorer)
    asked: list[CallResult[Any, Any]] = []
    made.scored = lambda self, done: asked.append(done)
    driver = Driver(made, run_calls=True)
    driver.feed(Charge("1234"))
    assert driver.calls == []
    assert [(each.argument, each.result) for each in asked] == [(Charge("1234"), 4)]


def test_the_example_of_records_by_another_key() -> None:
    class Transfer(msgspec.Struct, frozen=True):
        account: str
        amount: int

    class Movement(msgspec.Struct, frozen=True):
        amount: int

    driver = Driver(handler_of(Rekey, Any, Transfer=Transfer, Movement=Movement))
    driver.feed(Transfer("ann", 5))
    driver.commit()
    assert driver.position() == 2


def test_the_example_of_replies() -> None:
    class Payment(msgspec.Struct, frozen=True):
        cents: int

    class Booked(msgspec.Struct, frozen=True):
        cents: int

    driver = Driver(handler_of(Replies, Payment, Payment=Payment, Booked=Booked))
    assert driver.ask(Payment(5), "ann") == Booked(5)


def test_the_example_of_the_client() -> None:
    """`tests/system/test_asking.py` asks a service; this binds the arguments of the example."""
    asked: list[inspect.BoundArguments] = []

    class Bound:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            inspect.signature(Client).bind(*arguments, **named)

        async def ask(self, *arguments: Any, **named: Any) -> None:
            asked.append(inspect.signature(Client.ask).bind(self, *arguments, **named))

    namespace: dict[str, Any] = {"Client": Bound, "load": dict, "Payment": Bound, "Booked": Order}
    exec(f"async def run():\n{textwrap.indent(example(Client), '    ')}", namespace)  # noqa: S102  as above
    asyncio.run(namespace["run"]())
    assert asked[0].arguments["id"] == "order-17"


def test_the_example_of_the_lifespan() -> None:
    """`examples/microservice` is the application; this is its call."""
    found: dict[str, Any] = {}
    names = {"FastAPI": lambda **given: found.update(given), "service": None, "client": None, "lifespan": lifespan}
    exec(example(lifespan), names)  # noqa: S102  as above
    assert callable(found["lifespan"])


def test_the_example_of_the_client_as_a_dependency() -> None:
    """`examples/microservice` has routes with it; this is its declaration."""
    names: dict[str, Any] = {"Annotated": Annotated, "Client": Client, "Depends": list, "client_of": [client_of]}
    exec(example(client_of), names)  # noqa: S102  as above
    assert get_args(names["Payments"]) == (Client, [client_of])


def test_the_example_of_streamed_changes() -> None:
    """It is the last line of a route."""

    async def watch(table: str, **given: Any) -> AsyncGenerator[Any, None]:
        yield table, given

    names: dict[str, Any] = {"stream_changes": stream_changes, "client": SimpleNamespace(watch=watch)}
    exec(f"def route(last_event_id, after):\n{textwrap.indent(example(stream_changes), '    ')}", names)  # noqa: S102  as above
    assert names["route"]("", "position").media_type == "text/event-stream"


TRIED: tuple[Any, ...] = (
    *(Call, Client, Dedupe, Driver, JoinBuffer, Reference, Rekey, Replies, Retired, Tumbling),
    *(client_of, failures, lifespan, on, stream_changes),
)


def test_every_example_is_tried() -> None:
    owners: list[Any] = [failures, schema]
    for module, names in PUBLIC.items():
        owners += [getattr(importlib.import_module(module), name) for name in names]
    kinds: list[Callable[..., Any]] = [each for each in owners if not isinstance(each, str)]
    assert {each for each in kinds if example(each)} == set(TRIED)
