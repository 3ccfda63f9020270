"""An idle partition costs next to nothing, whatever the number of partitions and the length of an outage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A broker of this test's own: it is killed."""
    with started(lambda: Cluster(settings=SETTINGS)) as cluster:
        yield cluster


@pytest.mark.long
def test_an_idle_producer_keeps_no_events(cluster: Cluster, tmp_path: Path) -> None:
    """Statistics and log lines wait in memory of librdkafka until something polls, and an idle partition does not."""
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2)
    stage.create_topics()
    settings = {"STATEHOLD_KAFKA__STATISTICS_INTERVAL": "0.05", "STATEHOLD_GROUP__SESSION_TIMEOUT": "120"}
    with Local(stage, **settings) as local:
        local.await_live(0, 1)
        stage.feed(100)
        stage.await_all()
        producers = Producers(local)
        await_true(producers.idle, "no transaction is open, nor its end on the way")
        cluster.kill(1)
        await_true(lambda: local.service.status()["outage"], "the brokers are away", 60)
        await_true(lambda: local.events("outage"), "the clients have tried to connect again for seconds", 60)
        await_true(producers.have_been_polled, "each worker has taken events of its producer")
        cluster.start(1)
        stage.feed(100)
        stage.await_all(240)
    stage.verify()
    stage.close()


class Producers:
    """The producer of each partition, and the number of events that wait in its memory."""

    def __init__(self, local: Local) -> None:
        manager = local.service._manager
        assert manager is not None
        takeovers = [track.worker._takeover for track in manager._assignment.tracks.values()]  # type: ignore[attr-defined]
        self._transactions = [each.live.transaction for each in takeovers]
        self._most = [0] * len(takeovers)
        self._polled: set[int] = set()

    def idle(self) -> bool:
        """A worker that asks dead brokers to end a transaction waits in that call and polls nothing meanwhile."""
        return all(each.commit is None and each.policy.since is None for each in self._transactions)

    def have_been_polled(self) -> bool:
        """Statistics alone add events, so the number falls only by a poll."""
        for index, each in enumerate(self._transactions):
            waiting = len(each.kafka.producer._handle.get())
            if waiting < self._most[index]:
                self._polled.add(index)
            self._most[index] = max(self._most[index], waiting)
        return len(self._polled) == len(self._transactions)
