"""Producer ids that are taken, expire, or end by a timeout: who may come back, and who may not (F6, F7, F21)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.brokers import SETTINGS, started
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

EXPIRY = {
    "transactional.id.expiration.ms": "6000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": "5000",
    "producer.id.expiration.check.interval.ms": "1000",
}


def hijack(stage: Stage, partition: int = 0) -> None:
    """A stranger initialises the id: its former holder is fenced."""
    config = {"bootstrap.servers": stage.servers, "transactional.id": stage.names.transactional_id(partition)}
    Producer(config).init_transactions(30)


def test_repeated_fences_raise_an_alarm_and_a_retry_resumes_the_partition(two_partitions: Stage) -> None:
    stage = two_partitions
    with Local(stage, STATEHOLD_FAILURE__FENCE_LIMIT="2") as local:
        local.await_live(0, 1)
        for times in (1, 2, 3):
            hijack(stage)
            stage.feed(50)
            await_true(lambda times=times: len(local.events("fenced_by_new_owner")) >= times, "a fence")  # type: ignore[misc]
            if times < 3:
                stage.await_all()
        await_true(lambda: local.events("fenced_too_often"), "the alarm")
        assert local.phase(0) == "failed"
        assert local.phase(1) == "live"
        assert stage.names.transactional_id(0) in local.events("fenced_too_often")[0]["transactional_id"]
        local.service.retry(0)
        stage.await_all()
        assert len(local.events("fenced_too_often")) == 1
    stage.verify()


@pytest.mark.long
def test_a_live_id_is_taken_twenty_times_and_the_owner_recovers(two_partitions: Stage) -> None:
    stage = two_partitions
    with Local(stage, STATEHOLD_FAILURE__FENCE_LIMIT="100") as local, stage.load(200):
        local.await_live(0, 1)
        for _ in range(20):
            stage.await_progress()
            hijack(stage)
            stage.await_progress()
        assert not local.events("fenced_too_often")
        assert len(local.events("fenced_by_new_owner")) >= 20
        assert {event["partition"] for event in local.events("fenced_by_new_owner")} == {0}
    with Local(stage):
        stage.await_all()
    stage.verify()


@pytest.mark.long
def test_a_transaction_that_times_out_is_no_rival(stage: Stage) -> None:
    """The broker's answer is the same as after a fence; the group says that this process is the owner (P4)."""
    settings = {
        "STATEHOLD_KAFKA__SOCKET_TIMEOUT": "1.5",
        "STATEHOLD_COMMIT__TIMEOUT": "2",
        "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "3",
        "STATEHOLD_COMMIT__INTERVAL": "1",
        "STATEHOLD_GROUP__SESSION_TIMEOUT": "60",
    }
    process = stage.process("only", **settings).await_live(0, 1, 2, 3)
    with stage.load(500):
        for times in (1, 2, 3):
            stage.await_progress()
            process.signal(signal.SIGSTOP)
            pause(15.0)
            process.signal(signal.SIGCONT)
            stage.await_progress()
            assert len(process.events("producer_replaced", "fenced_by_new_owner")) >= times
    stage.await_all()
    assert not process.events("thread_died", "fenced_too_often", "stuck")
    assert not [event for event in process.events("failed") if event["error"] != "Fenced"]
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_a_zombie_past_the_expiry_of_its_id_commits_nothing(short_lived: Cluster, tmp_path: Path) -> None:
    """Its producer would get a new id without a word, and fence the rightful owner (P3)."""
    stage = Stage(short_lived.bootstrap_servers, tmp_path, 2).create_topics()
    open_long = {"STATEHOLD_COMMIT__INTERVAL": "3"}
    try:
        zombie = stage.process("zombie", **open_long).await_live(0, 1)
        stage.feed(500)
        stage.await_all()
        zombie.signal(signal.SIGSTOP)
        heir = stage.process("heir").await_live(0, 1)
        stage.feed(500)
        stage.await_all()
        pause(15.0)  # both ids expire: neither has committed for longer than six seconds
        zombie.signal(signal.SIGCONT)
        zombie.await_that(lambda: gone(zombie.events("partition_closed")) == {0, 1}, "the zombie's end")
        stage.feed(500)
        stage.await_all()
        # The heir's own ids have expired, too: it asks its group. The zombie's process is a member again by then, and
        # may have been given one of the partitions.
        await_true(lambda: heir.live() | zombie.live() == {0, 1}, "both are live")
        assert not zombie.events("failed", "thread_died")
        stage.verify()
    finally:
        stage.close()


@pytest.fixture(scope="module")
def short_lived() -> Iterator[Cluster]:
    """A broker that forgets producer ids within seconds."""
    with started(lambda: Cluster(settings={**SETTINGS, **EXPIRY})) as cluster:
        yield cluster


def gone(events: list[dict[str, int]]) -> set[int]:
    return {event["partition"] for event in events}


def pause(seconds: float) -> None:
    """How long a fault lasts: the broker looks every ten seconds for transactions that have timed out."""
    threading.Event().wait(seconds)
