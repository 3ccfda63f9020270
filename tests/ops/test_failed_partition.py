"""A partition that has failed keeps its position and its lag: in the status, the metrics, `lag` and the doctor."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from tests.support.desk import POISON, Desk, Fragile, Names, Order, a_desk, ask, await_true, create_topics, feed

from statehold import Service
from statehold.admin.dead_letter_request import RequestedDeadLetter
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.messages.command import issuer
from statehold.ops.cli.topics import dlq
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Level
from statehold.ops.http.server import OpsServer
from statehold.ops.reports.lag import Lags

pytestmark = pytest.mark.kafka


class NeverLive(Desk):
    """Fails before the partition is live, so that this process has no position of its own."""

    def on_live(self) -> None:
        raise ValueError("the rates are missing")


def running(stack: ExitStack, names: Names, handler: type[Desk]) -> Service:
    service = a_desk(names, "web1", handler=handler)
    stack.enter_context(OpsServer(service))
    stack.callback(service.stop)
    service.start()
    return service


def partition(service: Service) -> dict[str, Any]:
    return next(iter(service.status()["partitions"]), {})


def failed_with(service: Service, lag: int) -> dict[str, Any]:
    await_true(lambda: partition(service).get("phase") == "failed", "it has failed")
    await_true(lambda: partition(service)["lag"] == lag, f"its lag is {lag}")
    return partition(service)


def test_a_failed_partition_keeps_position_and_lag(stack: ExitStack, names: Names) -> None:
    create_topics(a_desk(names, "web1"), 1)
    service = running(stack, names, Fragile)
    feed(names, [Order("ann", 1), Order("ann", 2)])
    await_true(lambda: partition(service).get("position") == 2, "two orders are committed")
    feed(names, [Order("ann", POISON), *[Order("ann", 1)] * 10])
    assert failed_with(service, 11)["position"] == 2
    feed(names, [Order("ann", 1)] * 5)
    assert failed_with(service, 16)["position"] == 2
    assert 'statehold_consumer_lag_records{partition="0"' in ask(service.url, "/metrics").body.decode()

    first = examine(Case(service.settings, service.names, output_topics(service.handler, service.names), probes=False))[
        0
    ]
    assert (first.check, first.level, first.about) == ("failed-partitions", Level.FAIL, f"{names.input}[0]")
    assert "position 2, 16 records behind" in first.reason
    assert "this order cannot be booked" in first.reason
    assert f"statehold retry 0 --name {names.service}" in first.fix


def test_a_partition_that_was_never_live_has_the_position_of_the_group(stack: ExitStack, names: Names) -> None:
    create_topics(a_desk(names, "web1"), 1)
    with a_desk(names, "web0") as before:
        feed(names, [Order("ann", 1)] * 3)
        await_true(lambda: partition(before).get("position") == 3, "three orders are committed")
    feed(names, [Order("ann", 1)] * 4)
    assert failed_with(running(stack, names, NeverLive), 4)["position"] == 3


def test_the_lag_of_a_group_that_has_read_everything_is_zero(names: Names) -> None:
    """A transaction's marker is behind its last record and takes an offset."""
    service = a_desk(names, "web1")
    create_topics(service, 1)
    producer = Producer({"bootstrap.servers": names.servers, "transactional.id": names.service})
    producer.init_transactions(30)
    producer.begin_transaction()
    for amount in (1, 2, 3):
        producer.produce(names.input, msgspec.json.encode(Order("ann", amount)), "ann")
    producer.commit_transaction(30)
    with service:
        await_true(lambda: partition(service).get("position") == 3, "three orders are committed")
    lags = Lags(service.settings, service.names)
    (lag,) = lags.now()
    lags.close()
    assert (lag.position, lag.end, lag.records, lag.seconds) == (3, 4, 0, 0.0)


def test_two_commands_for_one_record_both_report_its_dead_letter(stack: ExitStack, names: Names) -> None:
    made = a_desk(names, "web1")
    topics = ServiceTopics(made.settings, made.names, [*output_topics(made.handler, made.names), made.names.dead])
    assert all(finding.good for finding in topics.create("beginning", partitions=1))
    feed(names, [Order("ann", POISON)])
    service = running(stack, names, Fragile)
    await_true(lambda: partition(service).get("phase") == "failed", "it has failed")
    requests = [RequestedDeadLetter(service.settings, service.names, service.names.input, 0, 0) for _ in range(2)]
    sent = [each.send(each.find(), "ticket 17", overtake=True) for each in requests]
    service.retry(0)
    assert all(each.passed(command, 60) for each, command in zip(requests, sent, strict=True))
    dead_letters = [each.dead_letter() for each in requests]
    assert [(each.offset, each.reason) for each in dead_letters if each is not None] == [(0, "ticket 17")] * 2
    said = [
        dlq._made_by(dead_letter, each.id)
        for dead_letter, each in zip(dead_letters, requests, strict=True)
        if dead_letter is not None
    ]
    assert said == [f", made by another command of {issuer()} (ticket 17)", ""], "the newest command made it"
