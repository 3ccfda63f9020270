"""Contracts of topics: ids, growth, deletion and re-creation."""

from __future__ import annotations

import uuid

import pytest
from tests.contracts.world import World

from statehold.errors import KafkaTrouble, TopicMissing


def test_a_topic_keeps_its_id(kafka: World) -> None:
    topic = kafka.topic()
    first = kafka.topic_id(topic)
    kafka.write(topic, [b"a"])
    assert first
    assert kafka.topic_id(topic) == first


def test_two_topics_have_different_ids(kafka: World) -> None:
    assert kafka.topic_id(kafka.topic()) != kafka.topic_id(kafka.topic())


def test_a_topic_that_does_not_exist_has_no_description(kafka: World) -> None:
    assert kafka.topic_id(f"missing-{uuid.uuid4().hex}") is None


def test_a_topic_that_exists_is_not_created_again(kafka: World) -> None:
    topic = kafka.topic()
    before = kafka.topic_id(topic)
    assert kafka.create(topic, 5) is False
    assert (kafka.topic_id(topic), kafka.topic_partitions(topic)) == (before, 1)


def test_a_topic_that_was_created_again_has_another_id_and_is_empty(kafka: World) -> None:
    topic = kafka.topic()
    before = kafka.topic_id(topic)
    kafka.write(topic, [b"a", b"b"])
    kafka.delete(topic)
    assert kafka.create(topic)
    assert kafka.topic_id(topic) != before
    kafka.until(lambda: kafka.reader().bounds(topic, 0) == (0, 0), "an empty topic")


def test_more_partitions_keep_id_and_records(kafka: World) -> None:
    topic = kafka.topic(2)
    before = kafka.topic_id(topic)
    kafka.write(topic, [b"a"], 1)
    kafka.grow(topic, 4)
    assert (kafka.topic_id(topic), kafka.topic_partitions(topic)) == (before, 4)
    assert kafka.sees(topic)
    assert [kafka.end(topic, partition) for partition in range(4)] == [0, 1, 0, 0]


@pytest.mark.parametrize("partitions", [1, 2], ids=["fewer", "as-many"])
def test_a_topic_does_not_shrink(kafka: World, partitions: int) -> None:
    topic = kafka.topic(2)
    with pytest.raises(KafkaTrouble):
        kafka.grow(topic, partitions)
    assert kafka.topic_partitions(topic) == 2


def test_a_deletion_of_a_missing_topic_is_an_error(kafka: World) -> None:
    with pytest.raises(Exception, match="UNKNOWN_TOPIC_OR_PART"):
        kafka.delete(f"missing-{uuid.uuid4().hex}")


def test_a_topic_keeps_the_settings_that_it_was_created_with(kafka: World) -> None:
    topic = kafka.topic(retention_ms="12345678")
    assert kafka.topic_settings(topic)["retention.ms"] == "12345678"


def test_the_bounds_of_a_deleted_topic_are_an_error(kafka: World) -> None:
    topic = kafka.topic()
    reader = kafka.reader()
    assert reader.bounds(topic, 0) == (0, 0)
    kafka.delete(topic)
    with pytest.raises(TopicMissing):
        reader.bounds(topic, 0)


def test_records_whose_own_timestamp_is_older_than_the_retention_are_deleted(kafka: World) -> None:
    """A producer whose clock is slow deletes its own records, unless the topic has LogAppendTime."""
    topic = kafka.topic(retention_ms="600000")
    kafka.write(topic, [b"old"], timestamp=1_000_000_000_000)
    kafka.until(lambda: kafka.start(topic) == 1, "the deletion", 40)
