"""Unreachable is not dead: a broker's host that is cut off answers nothing and resets nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.network.conftest import StageOf
from tests.support.netns import HERE, Net
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]

Fault = Callable[[Net, int], None]
#: never set: the wait for it is how long a fault lasts
HOLD = threading.Event()


def cut(net: Net, host: int) -> None:
    net.cut(host)


def unplugged(net: Net, host: int) -> None:
    net.unplug(host)


def clients_only(net: Net, host: int) -> None:
    """The brokers see each other, so that no other broker takes over what this one leads."""
    net.cut(host, (HERE,))


def answers_only(net: Net, host: int) -> None:
    """Requests arrive, answers do not: the broker does what it is asked, and its answers are lost."""
    net.drop(host, HERE)


def requests_only(net: Net, host: int) -> None:
    """The other direction: nothing arrives there, though it could answer."""
    net.drop(HERE, host)


def healed(net: Net) -> None:
    net.heal()
    for host in (1, 2, 3):
        net.plug(host)


@pytest.mark.parametrize("fault", [cut, unplugged], ids=lambda fault: fault.__name__)
def test_the_flow_continues_while_one_host_of_three_is_cut_off(stage_of: StageOf, net: Net, fault: Fault) -> None:
    stage = stage_of(4)
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    with stage.load(300):
        for host in (1, 2, 3):
            stage.await_progress()
            fault(net, host)
            stage.await_progress(240)
            healed(net)
            stage.await_progress(240)
    settle(stage)
    assert process.stop() == 0
    stage.verify()


@pytest.mark.parametrize("fault", [clients_only, answers_only, requests_only], ids=lambda fault: fault.__name__)
def test_a_partition_without_a_possible_leader_waits_and_continues_by_itself(
    stage_of: StageOf, net: Net, fault: Fault
) -> None:
    """The cluster sees nothing wrong, so partitions led there wait until the network is whole, and no longer."""
    stage = stage_of(4)
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    with stage.load(300):
        for host in (1, 2, 3):
            stage.await_progress()
            fault(net, host)
            process.await_event("producer_replaced", len(process.events("producer_replaced")) + 1, seconds=240)
            healed(net)
            stage.await_progress(240)
    settle(stage)
    assert process.stop() == 0
    stage.verify()


def test_a_restart_while_a_host_is_cut_off_goes_live(stage_of: StageOf, net: Net) -> None:
    """Metadata calls that hang on the dead address must not fail a start or a restore."""
    stage = stage_of(4)
    stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    stage.feed(2000)
    stage.await_all()
    for host in (1, 2, 3):
        assert stage.processes["only"].stop(120) == 0
        net.cut(host)
        process = stage.process("only").await_live(0, 1, 2, 3, seconds=300)
        assert not process.events("failed", "thread_died")
        net.heal()
        stage.feed(500)
        stage.await_all(240)
    settle(stage)
    stage.verify()


def test_the_test_of_the_production_service(stage_of: StageOf, cluster: Cluster, net: Net) -> None:
    """All alive; broker 2 killed; back; its host cut off; healed. After each: end to end, a new client, end to end."""
    stage = stage_of(4)
    stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: cluster.kill(2),
        lambda: cluster.start(2),
        lambda: net.cut(2),
        net.heal,
    ]
    for step in steps:
        step()
        end_to_end(stage)
        assert stage.processes["only"].stop(120) == 0
        stage.process("only").await_live(0, 1, 2, 3, seconds=300)
        end_to_end(stage)
    stage.verify()


def test_a_link_that_flaps(stage_of: StageOf, net: Net) -> None:
    stage = stage_of(4)
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    with stage.load(300):
        for turn in range(12):
            host = 1 + turn % 3
            net.cut(host)
            HOLD.wait(0.5 + turn % 4)
            net.heal()
            HOLD.wait(1.0)
        stage.await_progress(240)
    settle(stage)
    assert process.stop() == 0
    stage.verify()


def test_a_bad_cable_that_loses_every_third_packet(stage_of: StageOf, net: Net) -> None:
    stage = stage_of(4)
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    net.bad_cable(2, loss=0.3)
    try:
        with stage.load(100):
            for _ in range(3):
                stage.await_progress(300)
        settle(stage, 300)
    finally:
        net.good_cable(2)
    stage.feed(500)
    settle(stage)
    assert process.stop() == 0
    stage.verify()


def test_a_cable_that_is_late_by_a_second(stage_of: StageOf, net: Net) -> None:
    """Slower than the controllers' own limits: what that broker leads may stand still, or be read as it was.

    It must lose nothing, and all continues when the cable is good again.
    """
    stage = stage_of(4)
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    net.bad_cable(2, delay=1.0)
    try:
        with stage.load(50):
            HOLD.wait(120.0)
    finally:
        net.good_cable(2)
    stage.feed(500)
    stage.await_all(300)
    assert {event["error"] for event in process.events("failed")} <= {"OffsetDisagrees", "RestoreTimeout"}
    assert not process.events("thread_died", "stuck")
    assert process.stop(120) == 0
    stage.verify()


def test_a_worker_cut_off_from_all_brokers_loses_its_partitions_and_commits_nothing(
    stage_of: StageOf, net: Net
) -> None:
    """Beyond its session (F12): nothing of its memory is committed when it hears from its group again."""
    stage = stage_of(2)
    process = stage.process("only").await_live(0, 1, seconds=120)
    with stage.load(200):
        stage.await_progress()
        for host in (1, 2, 3):
            net.cut(host, (HERE,))
        process.await_event("outage", seconds=240)
        net.heal()
        stage.await_progress(240)
    settle(stage)
    process.await_event("outage_over", seconds=120)
    assert process.stop() == 0
    stage.verify()


def end_to_end(stage: Stage) -> None:
    """What is fed now comes out, on every partition."""
    stage.feed(400)
    stage.await_all(240)


def settle(stage: Stage, seconds: float = 240) -> None:
    stage.await_all(seconds)
    for process in stage.processes.values():
        assert not process.events("failed", "thread_died"), process.tail()
