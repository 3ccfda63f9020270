"""Topics that are deleted, created again or grown, at start and live: typed, by name, nothing skipped (F25, F26)."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

import msgspec
import prometheus_client
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from tests.support.apps.tally import POISON
from tests.support.figures import Figure
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.errors import HandlerFailed, PartitionCountChanged, TopicMismatch, TopicMissing, TopicReplaced

pytestmark = pytest.mark.kafka

OFTEN = {"STATEHOLD_SERVICE__TOPOLOGY_INTERVAL": "0.5"}


def delete(stage: Stage, topic: str) -> None:
    stage.admin.delete_topics([topic])[topic].result(30)
    await_true(lambda: topic not in stage.topics(), f"{topic} is gone")


def outputs(stage: Stage) -> int:
    return sum(map(len, read_all(stage.servers, stage.output).values()))


def test_an_input_that_grows_while_live_stops_the_service_and_leaves_the_state(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(500)
    with Local(stage, **OFTEN) as local:
        stage.await_all()
        stage.admin.create_partitions([NewPartitions(stage.names.input, 3)])[stage.names.input].result(30)
        for partition in (0, 1):
            cause = local.await_failed(partition, PartitionCountChanged, 120)
            assert "has 3 partitions, it had 2" in cause
            assert "statehold state repartition MODULE:SERVICE --to 3" in cause
        await_true(lambda: local.service.status()["topology"], "the status reports it")
        assert not local.service.status()["ready"]
        # What comes now may belong to another partition: it waits.
        stage.send(b'{"id":500,"amount":1}', 0)
        for partition in (0, 1):
            local.service.retry(partition)
        await_true(lambda: all(len(local.failures(p)) > 1 for p in (0, 1)), "both fail again")
    assert outputs(stage) == 500
    with pytest.raises(TopicMismatch, match="state repartition MODULE:SERVICE --to 3"):
        stage.service().start()


def test_an_input_recreated_while_live_is_another_topic(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(300)
    with Local(stage, **OFTEN) as local:
        stage.await_all()
        stage.await_position(300)
        delete(stage, stage.names.input)
        stage.create_by_hand(stage.names.input)
        stage.feed(2000)  # longer than the old one: no offset is out of range
        await_true(lambda: {local.phase(p) for p in (0, 1)} == {"failed"}, "both have failed", 120)
        for partition in (0, 1):
            local.service.retry(partition)
            await_true(lambda p=partition: names(local, p)[-1:] == ["TopicReplaced"], "its name", 120)  # type: ignore[misc]
            assert "repair accept-gap" in local.failures(partition)[-1]["cause"]
            # By the offset alone, by its absence, or by its id: whatever was seen first.
            assert set(names(local, partition)) <= {"TopicReplaced", "TopicMissing", "RetentionGap"}
    assert outputs(stage) == 300
    with Local(stage) as local:
        for partition in (0, 1):
            local.await_failed(partition, TopicReplaced)


def test_no_record_of_an_input_created_again_is_processed(two_partitions: Stage, figure: Figure) -> None:
    """The consumer alone shows it, within the fetch that would bring the first record: no monitor looks."""
    stage = two_partitions
    stage.feed(300)
    with Local(stage, STATEHOLD_SERVICE__TOPOLOGY_INTERVAL="3600") as local:
        stage.await_all()
        old = stage.fed
        stage.admin.delete_topics([stage.names.input])[stage.names.input].result(30)
        create_at_once(stage)
        began = time.monotonic()
        stage.feed(3000)  # longer than the old one: no offset is out of range
        with stage.load(500):
            await_true(lambda: {local.phase(p) for p in (0, 1)} == {"failed"}, "both have failed", 60)
        figure("an input that was created again fails its partitions after", time.monotonic() - began, "s")
        for partition in (0, 1):
            cause = local.await_failed(partition, TopicReplaced)
            assert "No record of the new topic was processed" in cause
            assert "repair accept-gap" in cause
    taken = [row for rows in read_all(stage.servers, stage.output).values() for row in rows]
    figure("records of the new input that were processed", sum(new(row.value, old) for row in taken), "records")
    assert len(taken) == old
    assert not any(new(row.value, old) for row in taken)
    with Local(stage) as local:
        for partition in (0, 1):
            local.await_failed(partition, TopicReplaced)


def create_at_once(stage: Stage) -> None:
    """Create the input again as soon as the controller has forgotten the old one; brokers may know that one still."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return stage.create_by_hand(stage.names.input)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise


def new(line: bytes, old: int) -> bool:
    return bool(msgspec.json.decode(line)["id"] >= old)


def names(local: Local, partition: int) -> list[str]:
    return [str(event["error"]) for event in local.failures(partition)]


def test_a_snapshot_topic_that_is_absent_is_named_at_once(two_partitions: Stage, figure: Figure) -> None:
    stage = two_partitions
    stage.feed(200)
    with Local(stage):
        stage.await_all()
    delete(stage, stage.names.snapshot)
    began = time.monotonic()
    with pytest.raises(TopicMissing, match=stage.names.snapshot):
        stage.service().start()
    figure("an absent topic is named after", time.monotonic() - began, "s")


def attempts(local: Local, doing: str) -> list[MutableMapping[str, Any]]:
    return [event for event in local.events("kafka_retry") if event["doing"] == doing]


@pytest.mark.long
@pytest.mark.parametrize("which", ["increment", "output"])
def test_a_topic_deleted_while_live_is_named(two_partitions: Stage, which: str) -> None:
    stage = two_partitions
    topic = stage.names.changelog if which == "increment" else stage.output
    stage.feed(200)
    with Local(stage, **OFTEN) as local:
        stage.await_all()
        delete(stage, topic)
        stage.feed(200)  # a worker meets the brokers' answer first, and must not stop at that
        for partition in (0, 1):
            await_true(lambda p=partition: local.failures(p), f"partition {partition} fails", 120)  # type: ignore[misc]
            assert topic in local.failures(partition)[-1]["cause"]
        # The client reports the records of the other topics as timed out, and the fence only the error.
        for event in local.events("producer_replaced") + attempts(local, "fence"):
            assert topic in event["cause"], event
        assert local.events("producer_replaced")
    assert stage.topics().isdisjoint({topic}), "no client has created it again by accident"


def test_group_offsets_that_have_expired_are_written_again(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(200)
    with Local(stage):
        stage.await_all()
    stage.await_empty_group()
    stage.admin.delete_consumer_groups([stage.names.group])[stage.names.group].result(30)
    assert stage.group.positions(stage.names.input) == {}
    with Local(stage) as local:
        local.await_live(0, 1)
        stage.await_all()  # without a record: by the mark alone
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    stage.verify()


def test_the_status_shows_how_long_retention_leaves(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.poison.touch()
    stage.send(b'{"id":0,"amount":%d}' % POISON, 0)
    set_config(stage, stage.names.input, "retention.ms", str(2 * 3_600_000))
    with Local(stage, **OFTEN) as local:
        local.await_failed(0, HandlerFailed)
        await_true(lambda: hours(local, 0) is not None, "the hours of a partition that stands", 120)
        left = hours(local, 0)
        assert left is not None
        assert 0 < left <= 2
        series = b'statehold_input_retention_left_seconds{partition="0"'
        shown = prometheus_client.generate_latest(local.service.metrics.registry)
        assert series in shown


def set_config(stage: Stage, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    stage.admin.incremental_alter_configs([resource])[resource].result(30)


def hours(local: Local, partition: int) -> float | None:
    reported = local.partitions()[partition]["retention_hours"]
    return None if reported is None else float(reported)
