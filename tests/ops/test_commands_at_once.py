"""Commands to several partitions: one that has failed delays no other, and a key that fails again is not flooded."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import ClassVar

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.desk import POISON, Fragile, Names, Order, a_desk, await_true, create_topics, feed

from statehold import Service, dead_letter
from statehold.admin.commands import Commander, CommandResult
from statehold.admin.dead_letters import DeadLetters
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.messages.command import TAKE
from statehold.messages.dead_letter import REPLAY

pytestmark = pytest.mark.kafka


class DeadLettering(Fragile):
    """Blocks the key of an order that cannot be booked."""

    on_failure: ClassVar = {ValueError: dead_letter()}


def phases(service: Service) -> list[str]:
    return [each["phase"] for each in service.status()["partitions"]]


def written(names: Names, topic: str) -> int:
    """How many offsets a topic of one partition has."""
    consumer = Consumer({"bootstrap.servers": names.servers, "group.id": "counts"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return int(end)


def test_a_failed_partition_does_not_delay_the_answers_of_others(stack: ExitStack, names: Names) -> None:
    service = a_desk(names, "web1", handler=Fragile)
    create_topics(service, 4)
    stack.enter_context(service)
    await_true(lambda: phases(service) == ["live"] * 4, "all are live")
    feed(names, [Order("ann", POISON)])
    await_true(lambda: "failed" in phases(service), "one has failed")
    failed = phases(service).index("failed")
    commander = Commander(service.settings, service.names)
    # The failed partition comes first: asked one after the other, it would take the time of all.
    sent = commander.send(TAKE, [failed, *(each for each in range(4) if each != failed)])
    answers: list[tuple[float, CommandResult]] = []
    began = time.monotonic()
    timeout = 20.0
    commander.await_answers(
        sent, timeout, full=True, report=lambda answer: answers.append((time.monotonic() - began, answer))
    )
    assert sorted(answer.partition for _, answer in answers[:3]) == [each for each in range(4) if each != failed]
    assert all(answer.full is not None and seconds < timeout for seconds, answer in answers[:3])
    assert answers[3][1].partition == failed
    assert answers[3][1].transaction is None


def test_a_key_that_fails_again_gets_one_command(stack: ExitStack, names: Names) -> None:
    service = a_desk(names, "web1", handler=DeadLettering)
    create_topics(service, 1)
    findings = ServiceTopics(
        service.settings, service.names, [*output_topics(service.handler, service.names), service.names.dead]
    ).create("beginning", partitions=1, control=True)
    assert all(finding.good for finding in findings), findings
    stack.enter_context(service)
    feed(names, [Order("ann", POISON), *[Order("ann", 1)] * 200, *[Order("bob", 1)] * 20])
    dead = DeadLetters(service.settings, service.names)
    await_true(lambda: sum(map(len, dead.waiting().values())) == 201, "all of ann's orders wait")
    before = written(names, service.names.control)
    (outcome,) = dead.resolve(REPLAY, (), lambda _: True, "the rates are there", 60)
    assert (outcome.asked, outcome.done, outcome.failed) == (1, 0, ["0@0"])
    assert written(names, service.names.control) - before == 1
    assert sum(map(len, dead.waiting().values())) == 201
