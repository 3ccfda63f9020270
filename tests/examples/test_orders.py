"""The foreign-key join of the orders example: the newest rows are the join of the newest orders and customers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from examples.orders.app import AllOrders, Customer, Joined, Order, Orders
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold.common.partitioner import murmur2
from statehold.testing import Driver
from statehold.testing.simulation.cluster import SimulatedCluster

PARTITIONS = 3
Step = tuple[str, str, Any]

keys, people = st.sampled_from("12345"), st.sampled_from("abc")
orders = st.builds(Order, customer=people, amount=st.integers(1, 9)) | st.none()
customers = st.builds(Customer, name=st.sampled_from(["Ann", "Bob", "Cy"])) | st.none()
steps = st.lists(
    st.tuples(st.just("orders"), keys, orders)
    | st.tuples(st.just("customers"), people, customers)
    | st.tuples(st.sampled_from(["commit", "crash", "tick"]), st.just(""), st.none()),
    max_size=40,
)


def expected(given_steps: list[Step], *, left: bool) -> dict[str, Joined]:
    newest: dict[str, dict[str, Any]] = {"orders": {}, "customers": {}}
    for topic, key, value in given_steps:
        if topic in newest:
            newest[topic][key] = value
    rows = {
        number: Joined(order, newest["customers"].get(order.customer))
        for number, order in newest["orders"].items()
        if order is not None
    }
    return {number: row for number, row in rows.items() if left or row.customer is not None}


def newest_rows(driver: Driver) -> dict[str, Joined]:
    rows = {(each.key or b"").decode(): each.value for each in driver.sent(Orders.joined)}
    return {number: row for number, row in rows.items() if row is not None}


@pytest.mark.parametrize("kind", [Orders, AllOrders])
def test_the_result_is_the_join_of_what_is_newest(kind: type[Orders]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(steps)
    def check(given_steps: list[Step]) -> None:
        driver = Driver(kind, partitions=PARTITIONS, autocommit=False, delta_interval=5.0)
        for topic, key, value in given_steps:
            match topic:
                case "commit":
                    driver.commit()
                case "tick":
                    driver.advance(0.2)
                case "crash":
                    driver.crash()
                    driver.restore()
                case _:
                    driver.feed(value, key, partition=murmur2(key.encode(), PARTITIONS), input=topic)
        driver.commit()
        assert newest_rows(driver) == expected(given_steps, left=kind.left)

    check()


def test_an_order_follows_its_customer() -> None:
    driver = Driver(Orders, partitions=PARTITIONS)

    def feed(topic: str, key: str, value: Any) -> list[Any]:
        before = len(driver.outputs(Orders.joined))
        driver.feed(value, key, partition=murmur2(key.encode(), PARTITIONS), input=topic)
        return driver.outputs(Orders.joined)[before:]

    assert feed("orders", "1", Order("a", 5)) == []
    assert feed("customers", "a", Customer("Ann")) == [Joined(Order("a", 5), Customer("Ann"))]
    assert feed("customers", "a", Customer("Anna")) == [Joined(Order("a", 5), Customer("Anna"))]
    assert feed("orders", "1", Order("b", 5)) == [None]
    assert feed("customers", "a", Customer("Ann")) == []
    assert feed("customers", "b", Customer("Bob")) == [Joined(Order("b", 5), Customer("Bob"))]
    assert feed("orders", "1", None) == [None]
    assert feed("customers", "b", None) == []


def test_a_cluster_that_loses_a_process_makes_the_same_rows() -> None:
    with SimulatedCluster(Orders, processes=2, partitions=2) as cluster:
        for number in range(6):
            key = str(number)
            cluster.feed(Order("ab"[number % 2], number), key, murmur2(key.encode(), 2), input="orders")
        cluster.feed(Customer("Ann"), "a", murmur2(b"a", 2), input="customers")
        cluster.advance(2.0)
        cluster.kill("a")
        cluster.feed(Customer("Bob"), "b", murmur2(b"b", 2), input="customers")
        cluster.run()
        rows = [each for each in cluster.outputs("joined") if each is not None]
    assert {msgspec.json.encode(each) for each in rows} >= {
        msgspec.json.encode(Joined(Order("ab"[n % 2], n), Customer(["Ann", "Bob"][n % 2]))) for n in range(6)
    }
