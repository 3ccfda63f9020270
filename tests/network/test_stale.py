"""A leader that has been replaced and does not know it: clients reach it, the other brokers do not.

It answers reads with an old end of the log, and as a group's coordinator with old offsets, for as long as it is cut off.
"""

from __future__ import annotations

import threading

import pytest
from tests.network.conftest import StageOf
from tests.support.netns import Net

from holdfast.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_start_that_sees_the_cluster_through_its_eyes_does_not_go_back_in_time(
    stage_of: StageOf, cluster: Cluster, net: Net, broker: int
) -> None:
    stage = stage_of(8)
    stage.process("only").await_live(*range(8), seconds=120)
    stage.feed(1000)
    stage.await_all()
    net.cut(broker, [other for other in (1, 2, 3) if other != broker])
    threading.Event().wait(15.0)  # its leaderships are gone, and only it does not know
    stage.feed(1000)
    stage.await_all(300)
    assert stage.processes["only"].stop(120) == 0
    through = cluster.bootstrap_servers.split(",")[broker - 1]
    process = stage.process("misled", HOLDFAST_KAFKA__BOOTSTRAP_SERVERS=through)
    threading.Event().wait(30.0)
    stage.feed(1000)
    threading.Event().wait(30.0)
    net.heal()
    stage.await_all(300)
    process.await_live(*range(8), seconds=240)
    assert process.stop(120) == 0
    stage.verify()
