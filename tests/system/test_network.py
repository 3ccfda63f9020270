"""The network between a service and its broker: requests late, twice, unanswered (rules T2, T4, T8; pitfall P1)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import Process
from tests.support.proxy import ApiKey, Fault, Proxy
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

OTHERS = (
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
)
#: requests are repeated soon, and a transaction is open most of the time
QUICK = {"STATEHOLD_KAFKA__SOCKET_TIMEOUT": "1.5"}


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Proxy:
    return proxied[1]


@pytest.fixture
def stage(proxied: tuple[Cluster, Proxy], tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(proxied[0].bootstrap_servers, tmp_path, 2)
    yield stage.create_topics()
    stage.close()


def test_connections_that_break_under_load(stage: Stage, proxy: Proxy) -> None:
    process = stage.process("only", **QUICK).await_live(0, 1)
    with stage.load(1000):
        for _ in range(5):
            stage.await_progress()
            proxy.reset_all()
    stage.await_all()
    assert process.events("producer_replaced")
    assert not process.events("failed", "thread_died", "fenced_by_new_owner")
    assert process.stop() == 0
    stage.verify()


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_a_commit_request_that_comes_late_or_goes_unanswered(stage: Stage, proxy: Proxy, fault: Fault) -> None:
    disturb(stage, proxy, ApiKey.END_TXN, fault)


@pytest.mark.long
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("request_kind", OTHERS, ids=lambda kind: kind.name.lower())
def test_any_transactional_request_that_comes_late(
    stage: Stage, proxy: Proxy, request_kind: ApiKey, fault: Fault
) -> None:
    disturb(stage, proxy, request_kind, fault)


def disturb(stage: Stage, proxy: Proxy, kind: ApiKey, fault: Fault) -> None:
    """Three times under load: one request of this kind is disturbed, and arrives when its sender has gone on."""
    process = stage.process("only", **QUICK).await_live(0, 1)
    trap = None
    with stage.load(500):
        for _ in range(3):
            stage.await_progress()
            trap = proxy.trap(kind, fault)
            if kind is ApiKey.INIT_PRODUCER_ID:
                proxy.reset_all()  # or no client would need one
            trap.wait_caught()
            stage.await_progress()
            if fault is not Fault.LOSE_ANSWER:
                trap.deliver()
            stage.await_progress()
    stage.await_all()
    if kind is ApiKey.END_TXN:
        assert len(process.events("producer_replaced")) >= 3
    assert not process.events("failed", "thread_died")
    assert process.stop() == 0
    stage.verify()


def test_a_zombie_whose_connections_are_gone_does_not_fence_back(stage: Stage, proxy: Proxy) -> None:
    """It wakes up to a lost connection, which alone would be a reason to fence again."""
    zombie = stage.process("zombie").await_live(0, 1)
    stage.feed(1000)
    stage.await_all()
    zombie.signal(signal.SIGSTOP)
    heir = stage.process("heir").await_live(0, 1)
    proxy.reset_all()
    stage.feed(1000)
    stage.await_all()
    zombie.signal(signal.SIGCONT)
    zombie.await_that(lambda: gone(zombie) == {0, 1}, "the zombie's end")
    stage.feed(1000)
    stage.await_all()
    assert not heir.events("fenced_by_new_owner", "failed"), "the zombie has fenced the rightful owner"
    stage.verify()


def gone(process: Process) -> set[int]:
    return {event["partition"] for event in process.events("partition_closed")}
