"""A leader that has been replaced and does not know it: clients reach it, the other brokers do not.

It answers reads with an old end of the log, and as a coordinator with old offsets, for as long as it is cut off.
"""

from __future__ import annotations

import threading

import pytest
from tests.network.conftest import StageOf
from tests.support.netns import HERE, Net
from tests.support.stage import Feeder, Stage

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]

PARTITIONS = 6


@pytest.mark.parametrize("stale", [1, 2, 3])
def test_a_start_that_sees_the_cluster_through_its_eyes_does_not_go_back_in_time(
    stage_of: StageOf, cluster: Cluster, net: Net, stale: int
) -> None:
    stage = stage_of(PARTITIONS)
    sound = [other for other in (1, 2, 3) if other != stale]
    servers = cluster.bootstrap_servers.split(",")
    stage.feed(1000)
    stage.process("only").await_live(*range(PARTITIONS), seconds=120)
    stage.await_all()
    assert stage.processes["only"].stop(120) == 0

    net.cut(stale, [*sound, HERE])
    threading.Event().wait(20.0)  # its leaderships are gone, and only it does not know
    through = ",".join(servers[broker - 1] for broker in sound)
    feed_through(stage, through, 1000)
    stage.process("sound", STATEHOLD_KAFKA__BOOTSTRAP_SERVERS=through).await_live(*range(PARTITIONS), seconds=240)
    stage.await_all(240)
    assert stage.processes["sound"].stop(120) == 0

    net.pass_on(HERE, stale)
    net.pass_on(stale, HERE)
    process = stage.process("misled", STATEHOLD_KAFKA__BOOTSTRAP_SERVERS=servers[stale - 1])
    feed_through(stage, through, 1000)
    threading.Event().wait(60.0)
    net.heal()
    process.await_live(*range(PARTITIONS), seconds=240)
    stage.await_all(300)
    assert process.stop(120) == 0
    stage.verify()


def feed_through(stage: Stage, servers: str, count: int) -> None:
    """By a producer that has never heard of the others."""
    feeder = Feeder(servers, stage.names.input)
    feeder.fed = stage.fed
    feeder.feed(count, 1000)
    stage.count(count)
