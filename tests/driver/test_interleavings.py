"""Orders of arrival for tests: each input keeps its order, every order may come, and a counterexample is short."""

from __future__ import annotations

import subprocess
from itertools import pairwise, permutations

import msgspec
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from statehold import Handler, Record, Table, on
from statehold.errors import UsageError
from statehold.testing import Arrival, Driver, interleavings

LISTS = st.lists(st.integers(0, 9), max_size=6)


def of(order: list[Arrival], topic: str) -> list[object]:
    return [value for name, value in order if name == topic]


@given(st.data(), st.dictionaries(st.sampled_from("abc"), LISTS, min_size=1))
def test_each_input_keeps_its_order_and_all_of_its_values(data: st.DataObject, inputs: dict[str, list[int]]) -> None:
    order = data.draw(interleavings(inputs))
    assert {topic: of(order, topic) for topic in inputs} == inputs
    assert len(order) == sum(map(len, inputs.values()))


@pytest.mark.parametrize("wanted", sorted(set(permutations("aabbc"))))
def test_every_order_may_come(wanted: tuple[str, ...]) -> None:
    orders = interleavings({"a": [1, 2], "b": [1, 2], "c": [1]})
    assert find(orders, lambda order: tuple(each.input for each in order) == wanted)


def test_a_counterexample_has_no_value_that_it_does_not_need_and_one_input_after_the_other() -> None:
    orders = interleavings({"a": LISTS, "b": LISTS})
    overtakes = find(orders, lambda order: any(one > ("b", 2) and two < ("b",) for one, two in pairwise(order)))
    assert overtakes == [Arrival("b", 3), Arrival("a", 0)]
    fixed = interleavings({"a": [1, 2, 3], "b": [4, 5]})
    assert find(fixed, lambda _: True) == [Arrival("a", n) for n in (1, 2, 3)] + [Arrival("b", n) for n in (4, 5)]
    overtaken = find(fixed, lambda order: order.index(Arrival("b", 4)) < order.index(Arrival("a", 3)))
    assert "".join(each.input for each in overtaken) == "aabab"


class Order(msgspec.Struct, frozen=True):
    id: str
    quantity: int


class Cancel(msgspec.Struct, frozen=True):
    id: str


class Forgetful(Handler[None]):
    """A cancel that overtakes its order is lost."""

    open = Table(key=str, value=int)

    @on("orders", value=Order)
    def on_order(self, record: Record[Order]) -> None:
        self.open[record.value.id] = record.value.quantity

    @on("cancels", value=Cancel)
    def on_cancel(self, record: Record[Cancel]) -> None:
        if record.value.id in self.open:
            del self.open[record.value.id]


def test_a_handler_that_depends_on_the_order_is_found_with_the_shortest_order() -> None:
    orders = st.lists(
        st.builds(Order, id=st.sampled_from("abc"), quantity=st.integers(1, 9)), unique_by=lambda each: each.id
    )

    def stays_open(order: list[Arrival]) -> bool:
        driver = Driver(Forgetful)
        for topic, value in order:
            driver.feed(value, value.id, input=topic)
        return bool(driver.table("open").keys() & {"a", "b"})

    found = find(interleavings({"orders": orders, "cancels": [Cancel("a"), Cancel("b")]}), stays_open)
    assert found == [Arrival("cancels", Cancel("a")), Arrival("orders", Order("a", 1)), Arrival("cancels", Cancel("b"))]


def test_without_an_input_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="there is no input"):
        interleavings({})


def test_without_hypothesis_the_error_names_the_command_and_the_driver_works(python: str) -> None:
    program = """
import sys
sys.modules["hypothesis"] = None
from statehold.errors import UsageError
from statehold.testing import Driver, interleavings
try:
    interleavings({"a": [1]})
except UsageError as error:
    print(error)
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "Next: pip install hypothesis" in done.stdout
