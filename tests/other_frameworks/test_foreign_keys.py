"""The foreign-key join of examples/orders and that of Kafka Streams on the same inputs: every record, and the tables.

docs/how-to/write/rekey.md has the differences in a table; each row is one of these steps. A failure after an upgrade of
Kafka Streams means that the table is to be changed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest
from benchmarks import environments, kafka
from benchmarks.contender import Running, new_job
from benchmarks.peers.rounds import CONTENDERS
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.brokers import started

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PARTITIONS = 3
#: topic, key, value
Step = tuple[str, str, Any]
_SECONDS = 120.0


def order(key: str, customer: str, amount: int) -> Step:
    return "orders", key, {"customer": customer, "amount": amount}


def customer(key: str, name: str) -> Step:
    return "customers", key, {"name": name}


def row(customer: str, amount: int, name: str | None) -> dict[str, Any]:
    """A row of the result."""
    order = {"customer": customer, "amount": amount}
    return {"order": order, "customer": None if name is None else {"name": name}}


#: what happens to order 1 and the customers a and b: a step, what an inner join sends for it, and what a left join does
STEPS: Sequence[tuple[str, Step, list[Any], list[Any]]] = [
    ("a customer without orders", customer("a", "Ann"), [], []),
    ("an order of a customer", order("1", "a", 5), [row("a", 5, "Ann")], [row("a", 5, "Ann")]),
    ("an update of the order", order("1", "a", 6), [row("a", 6, "Ann")], [row("a", 6, "Ann")]),
    ("the same order again", order("1", "a", 6), [row("a", 6, "Ann")], [row("a", 6, "Ann")]),
    ("the same customer again", customer("a", "Ann"), [row("a", 6, "Ann")], [row("a", 6, "Ann")]),
    ("an update of the customer", customer("a", "Anna"), [row("a", 6, "Anna")], [row("a", 6, "Anna")]),
    ("the customer is deleted", ("customers", "a", None), [None], [row("a", 6, None)]),
    ("the customer comes back", customer("a", "Ann"), [row("a", 6, "Ann")], [row("a", 6, "Ann")]),
    ("a deletion of a customer without orders", ("customers", "c", None), [], []),
    ("the order changes to another customer", order("1", "b", 6), [None], [row("b", 6, None)]),
    ("that customer comes", customer("b", "Bob"), [row("b", 6, "Bob")], [row("b", 6, "Bob")]),
    ("the former customer changes", customer("a", "Anne"), [], []),
    ("the order changes back", order("1", "a", 6), [row("a", 6, "Anne")], [row("a", 6, "Anne")]),
    ("the order is deleted", ("orders", "1", None), [None], [None]),
    ("the customer of a deleted order changes", customer("a", "Ann"), [], []),
    ("an order without a customer", order("2", "d", 1), [], [row("d", 1, None)]),
    ("an update of an order without a customer", order("2", "d", 2), [], [row("d", 2, None)]),
    ("it is deleted", ("orders", "2", None), [], [None]),
    ("an order that never was is deleted", ("orders", "3", None), [], []),
]


class Topics:
    """Writes the inputs of all contenders and reads their outputs."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        for topic in ("orders", "customers"):
            kafka.create(bootstrap, topic, partitions, message_timestamp_type="CreateTime")
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2"})

    def write(self, step: Step) -> None:
        topic, key, value = step
        data = None if value is None else json.dumps(value).encode()
        self._producer.produce(topic, data, key.encode())
        assert self._producer.flush(30.0) == 0


class Result:
    """Follows the output of one contender, whose only topic has one partition."""

    def __init__(self, topics: Topics, contender: str, join: str, stack: ExitStack) -> None:
        topic = kafka.create(topics.bootstrap, f"joined-{contender}-{join}")
        job = new_job(topics.bootstrap, 0, "", topic, work="foreign", inputs=["orders", "customers"], join=join)
        self.running = Running(CONTENDERS[contender], job)
        stack.callback(self.running.stop)
        config = {"bootstrap.servers": topics.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
        self._consumer = stack.enter_context(closing(Consumer(config)))
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.rows: list[tuple[str, Any]] = []

    def until(self, wanted: Any) -> list[tuple[str, Any]]:
        """Return the rows that came before one of the order `sentinel` that is `wanted`."""
        deadline, before = time.monotonic() + _SECONDS, len(self.rows)
        while True:
            assert time.monotonic() < deadline, f"no {wanted}\n{self.running.said(20)}"
            assert self.running.alive(), self.running.said(20)
            self.look()
            if ("sentinel", wanted) in self.rows[before:]:
                return [each for each in self.rows[before:] if each[0] != "sentinel"]

    def look(self) -> None:
        """Read what has come."""
        for message in self._consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            value = message.value()
            self.rows.append(((message.key() or b"").decode(), None if value is None else json.loads(value)))

    def table(self) -> dict[str, Any]:
        return {key: value for key, value in dict(self.rows).items() if value is not None}


@pytest.fixture
def topics(request: pytest.FixtureRequest) -> Iterator[Topics]:
    try:
        environments.streams_class_path()
    except environments.Skipped as reason:
        pytest.skip(str(reason))
    with started(Cluster) as cluster:
        yield Topics(cluster.bootstrap_servers, request.param)


@pytest.mark.parametrize("topics", [1], indirect=True)
def test_every_record_of_the_result(topics: Topics) -> None:
    """A sentinel follows each step on the same topic, so what the step has sent is there before its row."""
    differ: dict[str, dict[str, Any]] = {"inner": {}, "left": {}}
    with ExitStack() as stack:
        results = {
            (join, name): Result(topics, name, join, stack) for join in differ for name in ("statehold", "streams")
        }
        topics.write(customer("s", "0"))
        topics.write(order("sentinel", "s", 0))
        for result in results.values():
            result.until(row("s", 0, "0"))
        name, amount = "0", 0
        for number, (title, step, inner, left) in enumerate(STEPS, 1):
            topics.write(step)
            if step[0] == "orders":
                amount = number
                topics.write(order("sentinel", "s", amount))
            else:
                name = str(number)
                topics.write(customer("s", name))
            found = {
                place: [value for _, value in result.until(row("s", amount, name))] for place, result in results.items()
            }
            for join, wanted in (("inner", inner), ("left", left)):
                assert found[join, "statehold"] == wanted, (title, join)
                if found[join, "streams"] != wanted:
                    differ[join][title] = found[join, "streams"]
        for join in differ:
            assert results[join, "statehold"].table() == results[join, "streams"].table()
    assert differ == DIFFERENT


#: where Kafka Streams sends something else than statehold: it deletes a row that was never there
DIFFERENT: dict[str, dict[str, Any]] = {"inner": {"it is deleted": [None]}, "left": {}}


@pytest.mark.parametrize("topics", [PARTITIONS], indirect=True)
def test_the_tables_in_the_end(topics: Topics) -> None:
    """Many changes without a pause: the order of what the partitions send may differ, the tables may not."""
    numbers, newest = random.Random(5), dict[str, dict[str, Any]](orders={}, customers={})
    steps: list[Step] = []
    for _ in range(600):
        if numbers.random() < 0.6:
            key = str(numbers.randrange(25))
            steps.append(order(key, numbers.choice("abcdefg"), numbers.randrange(9)))
        else:
            steps.append(customer(numbers.choice("abcdefg"), str(numbers.randrange(99))))
        if numbers.random() < 0.2:
            steps[-1] = (*steps[-1][:2], None)
    for topic, key, value in steps:
        newest[topic][key] = value
    rows = {
        key: row(order["customer"], order["amount"], (newest["customers"].get(order["customer"]) or {}).get("name"))
        for key, order in newest["orders"].items()
        if order is not None
    }
    with ExitStack() as stack:
        results = {
            (join, name): Result(topics, name, join, stack)
            for join in ("inner", "left")
            for name in ("statehold", "streams")
        }
        for step in steps:
            topics.write(step)
        topics.write(customer("s", "0"))
        topics.write(order("sentinel", "s", 0))
        for (join, name), result in results.items():
            result.until(row("s", 0, "0"))
            wanted = {key: each for key, each in rows.items() if join == "left" or each["customer"] is not None}
            deadline = time.monotonic() + _SECONDS
            while {key: each for key, each in result.table().items() if key != "sentinel"} != wanted:
                assert time.monotonic() < deadline, (join, name)
                result.look()
