"""Methods for inputs: one for each, inherited or not, and none that hides a method of Handler."""

from __future__ import annotations

import pytest

from statehold import Handler, Record, on
from statehold.bound.inputs import check_inputs, methods, value_types
from statehold.common.names import Names
from statehold.errors import UsageError


class Base(Handler[None]):
    @on("trades", value=str)
    def trade(self, record: Record[str]) -> None: ...

    @on("prices", value=int)
    def price(self, record: Record[int]) -> None: ...


class Changed(Base):
    @on("prices", value=float)
    def price(self, record: Record[float]) -> None: ...


def test_methods_are_found_base_classes_first_and_the_last_declaration_holds() -> None:
    assert list(methods(Changed)) == ["trades", "prices"]
    assert value_types(Changed, Names("changed", "prices", others=("trades",))) == {"prices": float, "trades": str}
    check_inputs(Changed, ["prices", "trades"])


@pytest.mark.parametrize("name", ["cancel", "schedule", "effect", "on_command", "on_record"])
def test_a_method_for_an_input_does_not_hide_a_method_of_handler(name: str) -> None:
    hiding = type("Hiding", (Handler,), {name: on("cancels", value=str)(lambda self, record: None)})
    with pytest.raises(UsageError, match=f"Hiding.{name} handles the input 'cancels' and replaces Handler.{name}"):
        check_inputs(hiding, ["cancels"])


def test_two_methods_for_one_input_are_rejected() -> None:
    class Twice(Base):
        @on("trades", value=str)
        def also(self, record: Record[str]) -> None: ...

    with pytest.raises(UsageError, match="trade and also both handle the input 'trades'"):
        methods(Twice)


class Mixed(Base):
    def on_record(self, record: Record[None]) -> None: ...


class Single(Handler[str]):
    def on_record(self, record: Record[str]) -> None: ...


@pytest.mark.parametrize(
    ("kind", "inputs", "reported"),
    [
        (Mixed, ["trades", "prices"], r"methods for inputs \(trades, prices\) and on_record"),
        (Single, ["trades", "prices"], "has no method for each of the inputs trades, prices"),
        (Base, ["trades"], "the service does not read prices"),
        (Base, ["trades", "prices", "rates"], "Base has no method for rates"),
        (Base, ["trades", "rates"], "the service does not read prices and Base has no method for rates"),
    ],
)
def test_inputs_without_a_method_and_methods_without_an_input_are_rejected(
    kind: type[Handler[object]], inputs: list[str], reported: str
) -> None:
    with pytest.raises(UsageError, match=reported):
        check_inputs(kind, inputs)
