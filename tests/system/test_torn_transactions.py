"""Torn transactions (P1): a commit request that was sent twice ends the next transaction, without the suspicion rule.

The defence is switched off by the test that patches it; no setting does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.proxy import ApiKey, Fault, Proxy
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.dev import Cluster
from statehold.errors import StateRefused, TornTransaction
from statehold.kafka.clients.producer import KafkaTransactions

pytestmark = pytest.mark.kafka

#: requests are repeated soon
QUICK = {"STATEHOLD_KAFKA__SOCKET_TIMEOUT": "1.5"}
#: transactions stay open until the test looks
SLOW = {**QUICK, "STATEHOLD_COMMIT__INTERVAL": "3"}
#: as many transactions as there can be
HURRIED = {**QUICK, "STATEHOLD_COMMIT__INTERVAL": "0.02"}
PARTITIONS = 8


@pytest.fixture
def stage_of(proxied: tuple[Cluster, Proxy], tmp_path: Path) -> Iterator[Callable[[int], Stage]]:
    made: list[Stage] = []

    def stage(partitions: int) -> Stage:
        made.append(Stage(proxied[0].bootstrap_servers, tmp_path, partitions))
        return made[-1].create_topics()

    yield stage
    for each in made:
        each.close()


def torn_transaction(stage: Stage, proxy: Proxy) -> None:
    """The commit of a transaction is sent twice, and the first copy arrives in the midst of the next one."""
    trap = proxy.trap(ApiKey.END_TXN, Fault.HOLD_AND_RESET)
    stage.feed(10)
    trap.wait_caught()
    await_true(lambda: stage.position() == 10, "the repeated commit")
    stage.feed(10)
    await_true(lambda: outputs(stage, "read_uncommitted") == 20, "the next transaction is open")
    trap.deliver()


def outputs(stage: Stage, isolation: str) -> int:
    return sum(map(len, read_all(stage.servers, stage.output, isolation).values()))


def test_without_the_defence_a_transaction_is_torn_and_the_chain_check_finds_it(
    stage_of: Callable[[int], Stage], proxied: tuple[Cluster, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaTransactions, "suspicion", "")  # as PROBE_NO_SUSPICION does for a process
    stage = stage_of(1)
    with Local(stage, **SLOW) as local:
        local.await_live(0)
        torn_transaction(stage, proxied[1])
        why = local.await_failed(0, TornTransaction, 120)
    assert "torn" in why or "header" in why
    assert outputs(stage, "read_committed") == 20, "visible, though no mark knows of them"
    assert stage.position() <= 20
    with pytest.raises(StateRefused):
        stage.snapshots.restored(0)


@pytest.mark.long
def test_with_the_defence_the_same_request_does_no_harm(
    stage_of: Callable[[int], Stage], proxied: tuple[Cluster, Proxy]
) -> None:
    stage = stage_of(1)
    with Local(stage, **SLOW) as local:
        local.await_live(0)
        torn_transaction(stage, proxied[1])
        stage.await_all()
        assert local.events("producer_replaced")
        assert not local.events("failed")
    stage.verify()


@pytest.mark.long
def test_without_the_defence_the_same_storm_tears_one(
    stage_of: Callable[[int], Stage], proxied: tuple[Cluster, Proxy], seed: int
) -> None:
    """Or the next test would show nothing."""
    stage = stage_of(PARTITIONS)
    process = stage.process("only", PROBE_NO_SUSPICION="1", **HURRIED).await_live(*range(PARTITIONS))
    with stage.load(400), proxied[1].storm(ApiKey.END_TXN, 0.5, 0.2, seed):
        process.await_event("failed", seconds=300)
    assert {event["error"] for event in process.events("failed")} <= {"TornTransaction", "OffsetDisagrees"}


@pytest.mark.parametrize(
    "resets", [50, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])], ids=["50", "10000"]
)
def test_no_forced_reset_tears_a_transaction(
    stage_of: Callable[[int], Stage],
    proxied: tuple[Cluster, Proxy],
    resets: int,
    seed: int,
    figure: Callable[[str, float, str], None],
) -> None:
    """Each has its connection broken with the commit request under way, which arrives up to 0.2 s later."""
    stage = stage_of(PARTITIONS)
    process = stage.process("only", **HURRIED).await_live(*range(PARTITIONS))
    with stage.load(400), proxied[1].storm(ApiKey.END_TXN, 0.5, 0.2, seed) as storm:
        process.await_that(lambda: storm.caught >= resets, f"{resets} resets", 0.5 * resets + 120)
    stage.await_all(240)
    figure("resets", storm.caught, "")
    figure("producers replaced", len(process.events("producer_replaced")), "")
    assert not process.events("failed", "thread_died", "stuck")
    assert process.stop() == 0
    stage.verify()
