"""An output that takes nothing: too few replicas in sync, or no leader. Named, waited for, nothing lost.

Three brokers. A topic with fewer replicas than its min.insync.replicas does not provoke it: brokers since 3.9 take the
smaller of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from tests.support.brokers import SETTINGS, started
from tests.support.processes import Process, await_true
from tests.support.stage import Stage

from statehold.dev import Cluster
from statehold.errors import TopicMissing
from statehold.kafka.admin.admin import Admin

pytestmark = [pytest.mark.kafka, pytest.mark.long]

QUICK = {"STATEHOLD_COMMIT__TIMEOUT": "6", "STATEHOLD_SERVICE__TOPOLOGY_INTERVAL": "3600"}
VICTIM = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started(lambda: Cluster(3, settings=SETTINGS)) as cluster:
        yield cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """Its topics are not made yet."""
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2)
    yield stage
    stage.close()
    cluster.start()


def output(stage: Stage, replicas: list[list[int]], least: int) -> None:
    new = NewTopic(
        stage.output, 2, replica_assignment=replicas, config={"min.insync.replicas": str(least), "retention.ms": "-1"}
    )
    stage.admin.create_topics([new])[stage.output].result(30)
    stage.create_topics()


def waits_by_name(stage: Stage, cluster: Cluster, answer: str) -> Process:
    """One broker is killed under load; the log then names the answer, and all continues when it is back."""
    process = stage.process("only", **QUICK).await_live(0, 1, seconds=120)
    stage.feed(500)
    stage.await_all()
    cluster.kill(VICTIM)
    stage.feed(500)
    named = lambda: [e for e in process.events() if answer in str(e.get("cause")) and stage.output in str(e["cause"])]  # noqa: E731
    process.await_that(named, f"the log names {answer}", 240)
    cluster.start(VICTIM)
    stage.await_all(300)
    assert not process.events("failed", "thread_died", "stuck"), process.tail()
    assert process.stop(120) == 0
    stage.verify()
    return process


def test_too_few_replicas_in_sync(stage: Stage, cluster: Cluster) -> None:
    output(stage, [[1, 2, VICTIM], [2, 1, VICTIM]], 3)
    waits_by_name(stage, cluster, "NOT_ENOUGH_REPLICAS")


def test_an_output_without_a_leader(stage: Stage, cluster: Cluster) -> None:
    output(stage, [[VICTIM], [1]], 1)
    waits_by_name(stage, cluster, "LEADER_NOT_AVAILABLE")


def test_a_topic_that_two_of_three_brokers_do_not_know_is_absent(stage: Stage, cluster: Cluster) -> None:
    stage.create_topics()
    stage.admin.delete_topics([stage.names.snapshot])[stage.names.snapshot].result(30)
    await_true(lambda: stage.names.snapshot not in stage.topics(), "it is gone")
    with pytest.raises(TopicMissing, match=r"broker \d and broker \d of 3 report this"):
        Admin(stage.settings(), stage.names.group).require_existing(stage.names.snapshot)
    with pytest.raises(TopicMissing, match=stage.names.snapshot):
        stage.service().start()
