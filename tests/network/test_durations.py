"""One broker of three frozen for 5, 20 and 60 s (F9), its host cut off for 10, 30 and 75 s (F10), late by a second.

Hosts in network namespaces; the independent verifier ends each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.network.conftest import StageOf
from tests.network.gaps import longest_gap
from tests.network.test_three import group_coordinator
from tests.network.test_unreachable import HOLD, settle
from tests.support.brokers import SETTINGS, started
from tests.support.netns import Net
from tests.support.stage import Stage

from statehold.dev import Cluster
from statehold.dev.properties import Host

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]

Figure = Callable[[str, float, str], None]
#: what controllers need to bear a second of delay to one of them; the defaults are 2, 2 and 1 s
FAR_CONTROLLERS = {
    "controller.quorum.fetch.timeout.ms": "10000",
    "controller.quorum.request.timeout.ms": "10000",
    "controller.quorum.election.timeout.ms": "5000",
}


#: a transaction whose every step waits for a replica that is two seconds away takes half a minute
LONG = {
    "STATEHOLD_COMMIT__TIMEOUT": "60",
    "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "120",
    "STATEHOLD_GROUP__SESSION_TIMEOUT": "30",
    "STATEHOLD_KAFKA__SOCKET_TIMEOUT": "30",
}


@pytest.mark.parametrize("seconds", [5, 20, 60])
def test_one_broker_is_frozen(stage_of: StageOf, cluster: Cluster, seconds: float, figure: Figure) -> None:
    stage = stage_of(4)
    victim = group_coordinator(stage)
    through(stage, lambda: cluster.pause(victim), seconds, lambda: cluster.resume(victim), figure)


@pytest.mark.parametrize("seconds", [10, 30, 75])
def test_one_host_is_cut_off(stage_of: StageOf, net: Net, seconds: float, figure: Figure) -> None:
    stage = stage_of(4)
    victim = group_coordinator(stage)
    through(stage, lambda: net.cut(victim), seconds, net.heal, figure)


def through(
    stage: Stage, begin: Callable[[], object], seconds: float, end: Callable[[], object], figure: Figure
) -> None:
    """So long under load, with one process; what a partition stood still at most is written down."""
    process = stage.process("only").await_live(0, 1, 2, 3, seconds=120)
    began = time.time()
    with stage.load(300):
        stage.await_progress()
        begin()
        HOLD.wait(seconds)
        end()
        stage.await_progress(240)
    settle(stage)
    assert process.stop(120) == 0
    stage.verify()
    figure("longest gap", longest_gap(stage, began), "s")


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[tuple[Stage, Net]]:
    """Three hosts, whose controllers wait for each other for ten seconds."""
    with Net(3) as net:
        hosts = {n: Host(net.address(n), command=("ip", "netns", "exec", net.space(n))) for n in (1, 2, 3)}
        with started(lambda: Cluster(3, settings=SETTINGS | FAR_CONTROLLERS, hosts=hosts)) as cluster:
            stage = Stage(cluster.bootstrap_servers, tmp_path, 4)
            yield stage.create_topics(), net
            stage.close()


def test_a_host_that_is_late_by_a_second_for_everybody(patient: tuple[Stage, Net], figure: Figure) -> None:
    """With patient controllers and patient commits all partitions go on meanwhile, slowly."""
    stage, net = patient
    process = stage.process("only", **LONG).await_live(0, 1, 2, 3, seconds=120)
    began = time.time()
    with stage.load(50):
        stage.await_progress(300)
        net.bad_cable(2, delay=1.0)
        try:
            for _ in range(2):
                stage.await_progress(300)
        finally:
            net.good_cable(2)
        stage.await_progress(300)
    settle(stage)
    assert not process.events("stuck")
    assert process.stop(120) == 0
    stage.verify()
    figure("longest gap", longest_gap(stage, began), "s")
