"""The `dlq` commands for a service with two inputs, whose records have the same offsets, on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.processes import await_true
from tests.support.stage import StageFactory
from tests.system.test_dead_letter_requests import statehold
from tests.system.test_several_inputs import Pair

from statehold.admin.topics import ServiceTopics

pytestmark = pytest.mark.kafka


def send(pair: Pair, *records: tuple[str, bytes, int]) -> None:
    """Write records, each behind those before it in time: topic, key, and amount."""
    producer = Producer({"bootstrap.servers": pair.stage.servers})
    for number, (topic, key, amount) in enumerate(records):
        pair.begin += 1
        producer.produce(topic, b'{"id":%d,"amount":%d}' % (number, amount), key, 0, timestamp=pair.begin)
        pair.feeders[topic].fed += 1
    assert producer.flush(60) == 0


def create_topics(pair: Pair) -> None:
    topics = ServiceTopics(pair.stage.settings(), pair.names, [pair.stage.output, pair.names.dead])
    assert all(finding.good for finding in topics.create("beginning", partitions=1))


def handled(pair: Pair) -> list[tuple[str, int]]:
    return [(each.topic, each.offset) for each in pair.links()[0]]


def dlq(pair: Pair, *words: str, code: int = 0) -> str:
    return statehold(pair.stage, "dlq", *words, *pair.names.options.split(), code=code)


def listed(pair: Pair) -> list[str]:
    dead_letters: list[dict[str, Any]] = json.loads(dlq(pair, "list", "--json"))
    return [each["dead_letter"] for each in dead_letters]


def test_dead_letters_are_named_by_their_input_and_those_of_a_key_keep_the_order_of_both(stages: StageFactory) -> None:
    pair = Pair(stages(1))
    first, second = pair.names.inputs
    create_topics(pair)
    process = pair.process("dead-letters", PROBE_DEAD_LETTERS="1").start()
    process.await_live(0)
    send(pair, (first, b"a", 1), (second, b"b", -2))
    await_true(lambda: pair.handled() >= 2, "the first two records committed", 60)
    send(pair, (first, b"b", 3), (second, b"b", 4), (first, b"a", 5))
    await_true(lambda: pair.handled() >= 5, "all records committed", 60)

    # first: 1 at 0, 3 at 1, 5 at 2; second: -2 at 0, 4 at 1; of the two that wait, either may have arrived first
    assert handled(pair) == [(first, 0), (first, 2)]
    head, *waiting = listed(pair)
    assert head == f"{second}:0@0"
    assert sorted(waiting) == sorted([f"{first}:0@1", f"{second}:0@1"])
    assert f"name the record's input: {first}, {second}" in dlq(pair, "show", "0@1", code=2)
    assert "its key waits since place" in dlq(pair, "show", f"{first}:0@1")
    dlq(pair, "discard", "--dead-letter", f"{second}:0@0", "--why", "a test")
    assert "2 of 2 replayed" in dlq(pair, "replay", "--key", "b")
    assert [f"{topic}:0@{offset}" for topic, offset in handled(pair)[2:]] == waiting
    assert listed(pair) == []
    assert process.stop() == 0


@pytest.mark.long
def test_dlq_add_passes_over_a_failed_record_of_the_second_input(stages: StageFactory) -> None:
    pair = Pair(stages(1))
    first, second = pair.names.inputs
    create_topics(pair)
    process = pair.process("failing").start()
    process.await_live(0)
    send(pair, (first, b"a", 1), (second, b"a", 2), (first, b"a", 3))
    await_true(lambda: pair.handled() >= 3, "the first three records committed", 60)  # either input may arrive first
    send(pair, (second, b"a", -4), (first, b"a", 5))
    process.await_event("failed")

    why = ("--why", "a test", "--overtake")
    assert f"name the record's input: {first}, {second}" in dlq(pair, "add", "0", "1", *why, code=2)
    assert "it is committed" in dlq(pair, "add", "0", "1", "--topic", first, *why, code=1)
    sent = dlq(pair, "add", "0", "1", "--topic", second, *why, "--timeout", "0", code=1)
    assert f"{second}:0@1: the partition has not passed the record in time" in sent
    process.kill()
    process.start()
    await_true(lambda: pair.handled() >= 5, "the rest committed", 60)
    assert sorted(handled(pair)) == [(first, 0), (first, 1), (first, 2), (second, 0)]
    assert listed(pair) == [f"{second}:0@1"]
    assert process.stop() == 0
