"""Brokers that woke up or started give wrong answers for moments; a proxy gives them, because they are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.proxy import Proxy
from tests.support.stage import KIP848, Stage
from tests.support.wrong_answers import no_brokers, still_loading

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].lie = None


@pytest.fixture
def stage(proxied: tuple[Cluster, Proxy], tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(proxied[0].bootstrap_servers, tmp_path, 2)
    yield stage.create_topics()
    stage.close()


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_clients_that_learned_of_no_broker_reconnect(stage: Stage, proxy: Proxy, protocol: str) -> None:
    """librdkafka issue 5301: the clients forget every broker they knew, and would then ask none, permanently."""
    group = KIP848 if protocol == "consumer" else {}
    with Local(stage, **group) as local:
        stage.feed(500)
        stage.await_all()
        proxy.lie = no_brokers
        proxy.reset_all()
        await_true(lambda: local.service.status()["outage"], "the consumer has no broker to ask", 120)
        proxy.lie = None
        stage.renew()
        await_true(lambda: local.events("client_replaced"), "another client learns of a broker", 120)
        local.await_live(0, 1, seconds=120)
        stage.feed(500)
        stage.await_all(240)
        assert not local.events("failed", "thread_died", "stuck")
    stage.verify()


@pytest.mark.long
def test_a_coordinator_that_is_still_loading_is_named_and_waited_for(stage: Stage, proxy: Proxy) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS from the first question of a start on, for longer than a commit may take."""
    stage.feed(300)
    proxy.lie = still_loading
    with Local(stage, STATEHOLD_COMMIT__TIMEOUT="5") as local:

        def named() -> bool:
            causes = [str(event["cause"]) for event in local.events("kafka_retry") if event.get("doing") == "fence"]
            return any("COORDINATOR_LOAD_IN_PROGRESS" in cause and "no action needed" in cause for cause in causes)

        await_true(named, "the log names the answer", 120)
        await_true(lambda: "COORDINATOR_LOAD" in str(local.service.status()), "the status names it", 60)
        proxy.lie = None
        local.await_live(0, 1, seconds=120)
        stage.await_all()
        assert not local.events("failed", "thread_died", "stuck")
    stage.verify()
