"""An idle partition costs next to nothing, whatever the number of partitions and the length of an outage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import started
from tests.system.conftest import SETTINGS
from tests.system.local import Local
from tests.system.processes import await_true
from tests.system.stage import Stage

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A broker of this test's own: it is killed."""
    with started(lambda: Cluster(settings=SETTINGS)) as cluster:
        yield cluster


def test_an_idle_producer_keeps_no_events(cluster: Cluster, tmp_path: Path) -> None:
    """Statistics and log lines wait in memory of librdkafka until something polls, and an idle partition does not."""
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2)
    stage.create_topics()
    settings = {"STATEHOLD_KAFKA__STATISTICS_INTERVAL": "0.05", "STATEHOLD_GROUP__SESSION_TIMEOUT": "120"}
    with Local(stage, **settings) as local:
        local.await_live(0, 1)
        stage.feed(100)
        stage.await_all()
        waiting = Waiting(local)
        cluster.kill(1)
        await_true(lambda: local.service.status()["outage"], "the brokers are away", 60)
        await_true(lambda: local.events("outage"), "the clients have tried to connect again for seconds", 60)
        await_true(lambda: max(waiting()) == 0, "the worker has taken all events")
        cluster.start(1)
        stage.feed(100)
        stage.await_all(240)
    stage.verify()
    stage.close()


class Waiting:
    """Returns the events that wait in the memory of each partition's producer."""

    def __init__(self, local: Local) -> None:
        manager = local.service._manager
        assert manager is not None
        self._takeovers = [track.worker._takeover for track in manager._assignment.tracks.values()]  # type: ignore[attr-defined]

    def __call__(self) -> list[int]:
        return [len(each.live.transaction.kafka.producer._handle.get()) for each in self._takeovers]
