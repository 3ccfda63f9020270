"""An outage that begins while the member joins: its request may wait for group.max_poll_interval, five minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from tests.support.local_service import Local
from tests.support.members import close_members
from tests.support.processes import await_true
from tests.support.proxy import ApiKey, Fault, Proxy, Request
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

#: seconds until the reports: 15 on an ordinary machine, more on a slow one
SOON = 60.0


@pytest.fixture
def stage(proxied: tuple[Cluster, Proxy], tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(proxied[0].bootstrap_servers, tmp_path, 2)
    yield stage.create_topics()
    stage.close()


@pytest.mark.parametrize(
    ("protocol", "request_kind"),
    [
        ("classic", ApiKey.JOIN_GROUP),
        pytest.param("classic", ApiKey.SYNC_GROUP, marks=pytest.mark.long),
        pytest.param("consumer", ApiKey.CONSUMER_GROUP_HEARTBEAT, marks=pytest.mark.long),
    ],
    ids=["join", "sync", "heartbeat"],
)
def test_the_log_reports_it_though_all_partitions_are_idle(
    stage: Stage, proxied: tuple[Cluster, Proxy], protocol: str, request_kind: ApiKey
) -> None:
    cluster, proxy = proxied
    settings = {"STATEHOLD_GROUP__MAX_POLL_INTERVAL": "300", "STATEHOLD_KAFKA__CLIENT_ID": "first-member"}
    if protocol == "consumer":
        settings["STATEHOLD_GROUP__PROTOCOL"] = "consumer"
    with Local(stage, **settings) as local:
        local.await_live(0, 1)
        stage.feed(200)
        stage.await_all()
        trap = proxy.trap(request_kind, Fault.HOLD, from_client("first-member"))
        with second_member(stage, protocol):
            trap.wait_caught()
            cluster.pause(1)
            try:
                await_true(lambda: local.service.status()["outage"], "the status shows the outage", SOON)
                await_true(lambda: local.events("outage"), "the log reports the outage", SOON)
            finally:
                cluster.resume(1)
                trap.deliver()
        await_true(lambda: local.service.status()["outage"] is None, "the outage is over", 120)
        local.await_live(0, 1, seconds=120)
        stage.feed(200)
        stage.await_all(120)
        assert not local.events("failed", "thread_died", "stuck")
    stage.verify()


def from_client(name: str) -> Callable[[Request], bool]:
    """Return whether a request is of this client: its header has the id."""

    def matches(request: Request) -> bool:
        return name.encode() in request.frame[:64]

    return matches


@contextmanager
def second_member(stage: Stage, protocol: str) -> Iterator[None]:
    """A member whose joining makes the group rebalance; it leaves at the end."""
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": stage.servers,
        "group.id": stage.names.group,
        "group.protocol": protocol,
    }
    if protocol == "classic":
        config |= {"partition.assignment.strategy": stage.settings().group.assignor, "session.timeout.ms": 6000}
    consumer = Consumer(config)
    consumer.subscribe([stage.names.input])
    consumer.poll(0)
    try:
        yield
    finally:
        close_members(consumer)
