"""Answers of brokers, each provoked once: logged by name, with the setting to change; and the age of the brokers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic
from tests.support.brokers import started
from tests.support.local_service import Local
from tests.support.members import close_members
from tests.support.processes import await_true
from tests.support.stage import KIP848, Stage

from statehold.admin.topics import ServiceTopics
from statehold.dev import Cluster
from statehold.errors import KafkaTrouble, Misconfigured, OutputRefused, StateholdError

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: no member may be as short of session as the tests' are, and no group larger than two
STRICT = {
    "group.min.session.timeout.ms": "10000",
    "group.max.size": "2",
    "group.consumer.max.size": "2",
}
LONGER = {"STATEHOLD_GROUP__SESSION_TIMEOUT": "12"}


@contextlib.contextmanager
def cluster(settings: dict[str, str], version: str | None = None) -> Iterator[Cluster]:
    with started(lambda: Cluster(settings=settings, version=version)) as made:
        yield made


@pytest.fixture(scope="module")
def strict() -> Iterator[Cluster]:
    with cluster(STRICT) as made:
        yield made


@pytest.fixture
def stage(strict: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """Its topics are made by the first command that the broker has ever had: its coordinators are still loading."""
    made = Stage(strict.bootstrap_servers, tmp_path, 2)
    yield made.create_topics()
    made.close()


def ending(stage: Stage, **settings: str) -> str:
    """What the service ends with by itself."""
    service = stage.service(**settings)
    service.start()
    try:
        with pytest.raises(StateholdError) as caught:
            service.wait(60)
    finally:
        service.stop()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_session_that_the_brokers_do_not_allow(stage: Stage) -> None:
    reported = ending(stage)
    assert reported.startswith(Misconfigured.__name__)
    assert "INVALID_SESSION_TIMEOUT" in reported
    assert "group.session_timeout" in reported
    assert "group.min.session.timeout.ms" in reported


def test_a_full_group_is_named_and_waited_for(stage: Stage) -> None:
    stage.feed(100)
    first, second = (stage.process(name, **LONGER) for name in ("first", "second"))
    first.await_that(lambda: first.live() | second.live() == {0, 1}, "both are in the group")
    await_true(lambda: len(stage.group.members()) == 2, "two members")
    third = stage.process("third", **LONGER)
    reported = third.await_event("kafka_retry")
    assert "GROUP_MAX_SIZE_REACHED" in reported["cause"]
    assert "group.max.size" in reported["cause"]
    assert first.stop() == second.stop() == 0
    third.await_live(0, 1)
    stage.await_all()
    assert third.stop() == 0
    stage.verify()


def test_a_full_group_of_the_new_protocol_ends_the_service(stage: Stage) -> None:
    first, second = (stage.process(name, **KIP848) for name in ("first", "second"))
    first.await_that(lambda: first.live() | second.live() == {0, 1}, "both are in the group")
    await_true(lambda: len(stage.group.members()) == 2, "two members")
    reported = ending(stage, **KIP848)
    assert "maximum size" in reported
    assert "consumer cannot go on" in reported


def test_a_member_with_another_assignor(stage: Stage) -> None:
    stranger = Consumer(
        {
            "bootstrap.servers": stage.servers,
            "group.id": stage.names.group,
            "session.timeout.ms": 12000,
            "partition.assignment.strategy": "range",
        }
    )
    stranger.subscribe([stage.names.input])
    try:
        await_true(lambda: stranger.poll(0.1) is None and stranger.assignment(), "the stranger has joined")
        reported = ending(stage, **LONGER)
    finally:
        close_members(stranger)
    assert "INCONSISTENT_GROUP_PROTOCOL" in reported
    assert "group.protocol" in reported


def test_more_replicas_than_brokers(strict: Cluster, tmp_path: Path) -> None:
    stage = Stage(strict.bootstrap_servers, tmp_path, 2)
    with pytest.raises(KafkaTrouble, match=r"INVALID_REPLICATION_FACTOR.*--replication"):
        ServiceTopics(stage.settings(), stage.names, [stage.output]).create("beginning", partitions=2, replication=3)
    stage.close()


def test_topics_deleted_and_created_at_once_begin_again(stage: Stage) -> None:
    stage.feed(100)
    with Local(stage, **LONGER):
        stage.await_all()
    stage.await_empty_group()
    ours = [stage.names.changelog, stage.names.snapshot, stage.names.input, stage.output]
    for future in stage.admin.delete_topics(ours).values():
        future.result(30)
    stage.create_topics()
    stage.feed(100)
    with Local(stage, **LONGER):
        await_true(lambda: stage.position() >= 100, "all of the new input")
    restored = [stage.snapshots.restored(partition).commit_record for partition in (0, 1)]
    assert sum(commit_record.positions[stage.names.input] for commit_record in restored) == 100


def test_an_output_that_its_topic_does_not_take_is_rejected_by_name(strict: Cluster, tmp_path: Path) -> None:
    stage = Stage(strict.bootstrap_servers, tmp_path, 2)
    small = NewTopic(stage.output, 2, 1, config={"max.message.bytes": "2000"})
    stage.admin.create_topics([small])[stage.output].result(30)
    stage.create_topics()
    stage.send(b'{"id":0,"amount":1}', 0, os.urandom(5000).hex())  # nothing that compresses well
    with Local(stage, **LONGER) as local:
        cause = local.await_failed(0, OutputRefused, 120)
        assert "MSG_SIZE_TOO_LARGE" in cause
        assert stage.output in cause
        assert "max.message.bytes" in cause
        local.await_live(1)
    stage.close()


def test_an_output_that_is_rejected_among_many_ends_the_partition_and_no_producer_after_the_other(
    strict: Cluster, tmp_path: Path
) -> None:
    """It is refused while more is produced: the client then only says that its transaction is in a wrong state."""
    stage = Stage(strict.bootstrap_servers, tmp_path, 2)
    small = NewTopic(stage.output, 2, 1, config={"max.message.bytes": "2000"})
    stage.admin.create_topics([small])[stage.output].result(30)
    stage.create_topics()
    with Local(stage, **LONGER, STATEHOLD_COMMIT__INTERVAL="2") as local, stage.load(500):
        local.await_live(0, 1)
        stage.send(b'{"id":0,"amount":1}', 0, os.urandom(5000).hex())
        assert "MSG_SIZE_TOO_LARGE" in local.await_failed(0, OutputRefused, 180)
        assert len(local.events("producer_replaced")) < 3
    stage.close()
