"""Three brokers on this machine: coordinators killed in a commit, two of three gone, all gone, slow starts.

The independent verifier ends each. No root is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from tests.network.gaps import longest_gap
from tests.support import leaders
from tests.support.brokers import SETTINGS, started
from tests.support.processes import Process, await_true
from tests.support.stage import Stage

from statehold.admin.topics import REQUIRED
from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

Figure = Callable[[str, float, str], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started(lambda: Cluster(3, settings=SETTINGS)) as cluster:
        yield cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(cluster.bootstrap_servers, tmp_path, 4)
    yield stage.create_topics()
    stage.close()
    for broker in (1, 2, 3):
        cluster.resume(broker)
        if not cluster.is_alive(broker):
            cluster.start(broker)


def test_one_of_three_is_killed_and_comes_back(stage: Stage, cluster: Cluster, figure: Figure) -> None:
    """F8 in short: the one that leads most of what the service needs, and may be the controller, too."""
    process = live(stage)
    began = time.time()
    with stage.load(300):
        stage.await_progress()
        cluster.kill(group_coordinator(stage))
        stage.await_progress(240)
        revive(cluster)
        stage.await_progress(240)
    settle(stage, process)
    figure("longest gap", longest_gap(stage, began), "s")


@pytest.mark.long
@pytest.mark.parametrize("which", ["group", "transaction"])
def test_a_coordinator_dies_in_the_midst_of_a_commit(
    stage: Stage, cluster: Cluster, which: str, figure: Figure
) -> None:
    """Frozen first, so that a commit request is under way, unanswered, when it dies. Three times."""
    process = live(stage)
    began = time.time()
    with stage.load(300):
        for _ in range(3):
            stage.await_progress(240)
            broker = group_coordinator(stage) if which == "group" else transaction_coordinator(stage, 0)
            cluster.pause(broker)
            pause(1.0)
            cluster.kill(broker)
            stage.await_progress(240)
            revive(cluster)
    settle(stage, process)
    figure("longest gap", longest_gap(stage, began), "s")


@pytest.mark.long
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_rolling_restart(stage: Stage, cluster: Cluster, clean: bool, figure: Figure) -> None:
    """F14: two rounds."""
    process = live(stage)
    began = time.time()
    with stage.load(300):
        for broker in (1, 2, 3) * 2:
            stage.await_progress(240)
            if clean:
                cluster.stop(broker)
            else:
                cluster.kill(broker)
            cluster.start(broker)
    settle(stage, process)
    figure("longest gap", longest_gap(stage, began), "s")


@pytest.mark.long
def test_two_of_three_are_gone_and_writes_stop_in_a_clear_state(stage: Stage, cluster: Cluster) -> None:
    """F11: no progress, no crash, and the log says what is the matter."""
    process = live(stage)
    with stage.load(100):
        stage.await_progress()
        cluster.kill(1)
        cluster.kill(2)
        process.await_event("outage", seconds=240)
        pause(60.0)
        assert process.running
        assert not process.events("failed", "thread_died", "stuck", "outage_over")
        revive(cluster)
        stage.await_progress(240)
    settle(stage, process)
    process.await_event("outage_over")


@pytest.mark.long
def test_all_three_are_stopped_for_three_minutes(stage: Stage, cluster: Cluster) -> None:
    process = live(stage)
    stage.feed(2000)
    stage.await_all()
    for broker in (1, 2, 3):
        cluster.kill(broker)
    pause(180.0)
    reported = [event["seconds"] for event in process.events("outage")]
    assert len(reported) >= 2, "once a minute"
    revive(cluster)
    stage.feed(2000)
    settle(stage, process)
    process.await_event("outage_over")


@pytest.mark.long
def test_a_broker_that_starts_slowly(stage: Stage, cluster: Cluster) -> None:
    """At a tenth of its speed: it is connected to, and loads its coordinators, for a long time."""
    process = live(stage)
    with stage.load(100):
        stage.await_progress()
        broker = group_coordinator(stage)
        cluster.kill(broker)
        done = threading.Event()
        slow = threading.Thread(target=in_slow_motion, args=(cluster, broker, done))
        slow.start()
        try:
            cluster.start(broker)
            stage.await_progress(300)
        finally:
            done.set()
            slow.join()
            cluster.resume(broker)
        stage.await_progress(240)
    settle(stage, process)


@pytest.mark.long
def test_a_partition_without_a_leader_waits_alone_and_goes_live_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(cluster.bootstrap_servers, tmp_path, 3)
    lonely = {"min.insync.replicas": "1"}
    for topic, config in (
        (stage.names.input, {}),
        (stage.names.changelog, REQUIRED),
        (stage.names.snapshot, REQUIRED),
    ):
        new = NewTopic(topic, 3, replica_assignment=[[1], [2], [3]], config={**config, **lonely})
        stage.admin.create_topics([new])[topic].result(30)
    stage.create_topics()
    try:
        process = stage.process("only").await_live(0, 1, 2, seconds=120)
        stage.feed(1000)
        stage.await_all()
        assert process.stop() == 0
        cluster.kill(2)
        process = stage.process("only")
        process.await_that(lambda: process.live() == {0, 2}, "the others are live", 240)
        waits = lambda: [e for e in process.events("kafka_retry") if e.get("partition") == 1]  # noqa: E731
        process.await_that(waits, "the log says what partition 1 waits for", 120)
        ends = stage.group.positions(stage.names.input)
        for partition in (0, 2):
            stage.send(b'{"id":%d,"amount":1}' % (1000 + partition), partition)
            stage.await_partition(partition, ends[partition] + 1, 120)
        stage.count(2)
        assert process.live() == {0, 2}
        revive(cluster)
        process.await_live(0, 1, 2, seconds=240)
        assert not process.events("failed", "thread_died")
        settle(stage, process)
    finally:
        stage.close()
        revive(cluster)


def live(stage: Stage) -> Process:
    return stage.process("only").await_live(0, 1, 2, 3, seconds=120)


def revive(cluster: Cluster) -> None:
    """All that are dead at once: one alone may wait for the others, as controllers do."""
    cluster.start()


def settle(stage: Stage, process: Process) -> None:
    stage.await_all(300)
    assert not process.events("failed", "thread_died", "stuck"), process.tail()
    assert process.stop(120) == 0
    stage.verify()


def pause(seconds: float) -> None:
    """How long a fault lasts."""
    threading.Event().wait(seconds)


def in_slow_motion(cluster: Cluster, broker: int, done: threading.Event) -> None:
    while not done.wait(0.02):
        cluster.pause(broker)
        done.wait(0.18)
        cluster.resume(broker)


def group_coordinator(stage: Stage) -> int:
    return leader_of(stage, "__consumer_offsets", stage.names.group)


def transaction_coordinator(stage: Stage, partition: int) -> int:
    return leader_of(stage, "__transaction_state", stage.names.transactional_id(partition))


def leader_of(stage: Stage, topic: str, key: str) -> int:
    """Of the partition that Java's hash of the key names, once it has a leader."""
    found: list[int] = []

    def known() -> bool:
        found[:] = [leaders.leader_of(stage.admin, topic, key)]
        return found[0] > 0

    await_true(known, f"a leader for {key} in {topic}")
    return found[0]
