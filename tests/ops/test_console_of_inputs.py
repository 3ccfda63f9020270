"""The console of a service with two inputs, in a real browser: the page of a partition shows each input."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from tests.support.browser import Browser, missing
from tests.support.desk import SESSION, await_true, create_topics

from statehold import Handler, Record, Service, Table, on
from statehold.config.sections.connection import GroupSettings, KafkaSettings
from statehold.config.sections.ops import OpsSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]


def service_of(servers: str, first: str, second: str) -> Service:
    class Sums(Handler[Any]):
        sums = Table(key=str, value=int)

        @on(first, value=int)
        def one(self, record: Record[int]) -> None:
            self.sums["one"] = self.sums.get("one", 0) + record.value

        @on(second, value=int)
        def other(self, record: Record[int]) -> None:
            self.sums["other"] = self.sums.get("other", 0) + record.value

    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=servers),
        group=GroupSettings(session_timeout=SESSION, heartbeat_interval=1.0),
        ops=OpsSettings(listen="127.0.0.1:0"),
    )
    return Service(f"sums-{first}", inputs=[first, second], handler=Sums, settings=settings)


def test_the_page_of_a_partition_shows_each_input(kafka: Cluster, page: Browser) -> None:
    run = uuid.uuid4().hex[:8]
    first, second = f"trades-{run}", f"prices-{run}"
    service = service_of(kafka.bootstrap_servers, first, second)
    create_topics(service, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for topic, count in ((first, 3), (second, 5)):
        for number in range(count):
            producer.produce(topic, msgspec.json.encode(number), "key")
    assert producer.flush(60) == 0
    with ExitStack() as stack:
        server = stack.enter_context(OpsServer(service))
        stack.enter_context(service)
        await_true(lambda: [each["position"] for each in service.status()["partitions"]] == [8], "all is handled")
        page.open(f"{server.url}/#/partition/0")
        text = "return document.body.innerText"
        await_true(lambda: f"{second}\nposition 5, lag 0" in str(page.run(text)), "the second input is shown")
        assert f"{first}\nposition 3, lag 0" in str(page.run(text))
