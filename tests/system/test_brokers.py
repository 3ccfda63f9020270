"""Brokers die and come back under load: the service waits, continues, and nothing is lost or doubled."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS
from tests.support.processes import await_true
from tests.support.stage import Stage

from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev.pytest_plugin import ClusterFactory
from statehold.errors import KafkaTrouble, RestoreTimeout
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin

pytestmark = pytest.mark.kafka


@pytest.mark.long
def test_the_only_broker_is_killed_and_comes_back(kafka_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = kafka_cluster(settings=SETTINGS)
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2).create_topics()
    try:
        process = stage.process("only").await_live(0, 1)
        for _ in range(2):
            with stage.load(1000):
                before = stage.position()
                await_true(lambda before=before: stage.position() > before + 500, "load")  # type: ignore[misc]
                cluster.kill(1)
                cluster.start(1)
                stage.await_position(stage.fed)
        stage.await_all()
        assert not process.events("failed", "thread_died")
        assert process.stop() == 0
        stage.verify()
    finally:
        stage.close()


def test_a_frozen_leader_is_no_empty_topic(kafka_cluster: ClusterFactory) -> None:
    """librdkafka answers -1001 and no error; taken for an offset, the state of a partition would seem to be gone."""
    cluster = kafka_cluster()
    patient = KafkaSettings(bootstrap_servers=cluster.bootstrap_servers)
    TopicAdmin(Admin(Settings(kafka=patient), "creating")).create("asked", 1, 1, {})
    admin = Admin(Settings(kafka=replace(patient, socket_timeout=1.0)), "asking")
    assert admin.bounds("asked", 0, 30, lambda: False) == (0, 0)
    asked = admin.ask_bounds("asked", "asked", 0)
    assert asked(30) == (0, 0)
    cluster.pause(1)
    asked = admin.ask_bounds("asked", "asked", 0)
    with pytest.raises(RestoreTimeout, match="the leader did not return the offset"):
        admin.bounds("asked", 0, 0, lambda: False)
    with pytest.raises(KafkaTrouble, match="the leader did not return the offset"):
        asked(30)
    cluster.resume(1)
    assert admin.bounds("asked", 0, 30, lambda: False) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_each_of_three_brokers_fails_in_turn(
    kafka_cluster: ClusterFactory, tmp_path: Path, fault: signal.Signals
) -> None:
    cluster = kafka_cluster(3, settings=SETTINGS)
    stage = Stage(cluster.bootstrap_servers, tmp_path, 4).create_topics()
    try:
        pair = [stage.process(name) for name in ("a", "b")]
        pair[0].await_that(lambda: pair[0].live() | pair[1].live() == {0, 1, 2, 3}, "four live partitions")
        with stage.load(500):
            for broker in (1, 2, 3):
                if fault is signal.SIGKILL:
                    cluster.kill(broker)
                else:
                    cluster.pause(broker)
                stage.await_progress()
                if fault is signal.SIGKILL:
                    cluster.start(broker)
                else:
                    cluster.resume(broker)
                stage.await_progress()
        stage.await_all()
        for process in pair:
            assert not process.events("failed", "thread_died")
        assert [process.stop() for process in pair] == [0, 0]
        stage.verify()
    finally:
        stage.close()
