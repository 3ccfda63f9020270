"""A first start is explicit, and a worker never assumes one (requirement 4.2); namespaces (4.3)."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory
from tests.support.verify import read_all

from statehold.admin.topics import ServiceTopics
from statehold.errors import DamagedIncrement, NoCommitRecord, OffsetDisagrees, StartError, TopicMissing
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.snapshot.restore.discovery import last_commit_record

pytestmark = pytest.mark.kafka


def test_without_a_commit_record_nothing_begins_whatever_the_group_says(stages: StageFactory) -> None:
    stage = stages(2)
    stage.create_by_hand(stage.names.input, stage.names.changelog, stage.names.snapshot, stage.output)
    stage.feed(100)
    set_group_offset(stage, 0, 10)
    with Local(stage) as local:
        for partition in (0, 1):
            assert "statehold topics create --start-at" in local.await_failed(partition, NoCommitRecord)
    assert not any(read_all(stage.servers, stage.output).values())
    stage.create_topics("beginning")
    with Local(stage):
        stage.await_all()
    stage.verify()


def test_a_first_start_skips_the_records_that_a_retry_topic_already_holds(stages: StageFactory) -> None:
    stage = stages(2)
    retry = stage.names.retry(5)
    stage.create_by_hand(retry)
    producer = Producer({"bootstrap.servers": stage.servers})
    producer.produce(retry, b"1", partition=1)
    assert producer.flush(60) == 0
    settings = stage.settings()
    ServiceTopics(settings, stage.names, [stage.output, stage.names.dead, retry]).create("beginning", partitions=2)
    with closing(CommittedReader(settings, stage.names.group, Admin(settings, stage.names.group))) as reader:
        commit_records = [last_commit_record(reader, stage.names.changelog, partition) for partition in (0, 1)]
    assert [commit_record.positions for commit_record in commit_records if commit_record] == [
        {stage.names.input: 0},
        {stage.names.input: 0, retry: 1},
    ]


def test_commit_records_that_are_gone_are_damage_and_no_first_start(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    stage.delete_records(stage.names.changelog, 0)
    stage.feed(100)
    with Local(stage) as local:
        assert "gone" in local.await_failed(0, DamagedIncrement)
        stage.await_partition(1, stage.ends()[1])
    with pytest.raises(StartError, match="first start: "):
        stage.create_topics("beginning")


def test_a_deleted_changelog_is_missing_and_a_new_one_has_no_commit_record(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    stage.admin.delete_topics([stage.names.changelog])[stage.names.changelog].result(30)
    await_true(lambda: stage.names.changelog not in stage.topics(), "the topic's end")
    with pytest.raises(TopicMissing, match=f"{stage.names.changelog}.*statehold topics create"):
        stage.service().start()
    stage.create_by_hand(stage.names.changelog)
    with Local(stage) as local:
        for partition in (0, 1):
            local.await_failed(partition, NoCommitRecord)
    producer = Producer({"bootstrap.servers": stage.servers})
    producer.produce(stage.names.snapshot, b"a full, by any writer", partition=0)
    assert producer.flush(60) == 0
    with pytest.raises(StartError, match="first start: "):
        stage.create_topics("beginning")  # as the errors above may be read
    assert sum(map(len, read_all(stage.servers, stage.output).values())) == 100


def test_lost_group_offsets_are_written_again_at_once(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    before = stage.group.positions(stage.names.input)
    stage.admin.delete_consumer_groups([stage.names.group])[stage.names.group].result(30)
    assert stage.group.positions(stage.names.input) == {}
    with Local(stage) as local:
        local.await_live(0, 1)
        await_true(lambda: stage.group.positions(stage.names.input) == before, "the offsets are there again", 10)
        stage.feed(100)
        stage.await_all()
    stage.verify()


def test_a_group_offset_that_is_ahead_is_rejected(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    position = stage.group.positions(stage.names.input)[0]
    set_group_offset(stage, 0, position + 5)
    stage.feed(100)
    with Local(stage) as local:
        cause = local.await_failed(0, OffsetDisagrees)
        assert f"has committed {position + 5}" in cause
        assert f"the last commit record has {position}" in cause
        assert "repair adopt-offsets" in cause
        stage.await_partition(1, stage.ends()[1])
    set_group_offset(stage, 0, position)
    with Local(stage):
        stage.await_all()
    stage.verify()


def test_two_namespaces_of_one_service_side_by_side(stages: StageFactory) -> None:
    blue = stages(2, "blue.").create_topics()
    green = stages(2, "green.", of=blue).create_topics()
    blue.feed(500)
    green.count(500)
    with Local(blue), Local(green):
        blue.await_all()
        green.await_all()
    assert blue.verify() == green.verify()
    assert blue.names.changelog != green.names.changelog


def test_records_of_another_namespace_are_rejected(stages: StageFactory) -> None:
    blue = stages(1, "blue.").create_topics()
    blue.feed(100)
    with Local(blue):
        blue.await_all()
    red = stages(1, "red.", of=blue)
    red.create_by_hand(red.names.changelog, red.names.snapshot, red.output)
    producer = Producer({"bootstrap.servers": red.servers})
    for ours, theirs in ((blue.names.changelog, red.names.changelog), (blue.names.snapshot, red.names.snapshot)):
        for row in read_all(blue.servers, ours)[0]:
            producer.produce(theirs, row.value, partition=0)
    assert producer.flush(30) == 0
    with Local(red) as local:
        assert f"belongs to service {blue.names.group!r}" in local.await_failed(0, DamagedIncrement)
    assert not read_all(red.servers, red.output)[0]


def set_group_offset(stage: Stage, partition: int, offset: int) -> None:
    place = TopicPartition(stage.names.input, partition, offset)
    asked = ConsumerGroupTopicPartitions(stage.names.group, [place])
    stage.admin.alter_consumer_group_offsets([asked])[stage.names.group].result(30)
