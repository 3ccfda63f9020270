"""Contracts of the group's consumer as a reader: seek, pause, isolation, offsets that are gone, the input's id."""

from __future__ import annotations

import pytest
from tests.contracts.world import Member, World, poll_until, sent, settled

from statehold.errors import KafkaTrouble


def owner(kafka: World, partitions: int = 1) -> Member:
    member = Member(kafka, kafka.names(partitions), "a").join()
    settled(member, partitions=partitions)
    return member


def pause_for(member: Member, seconds: float = 0.6) -> None:
    until = member.world.now() + seconds
    poll_until([member], lambda: member.world.now() >= until, "the pause")


def test_an_assigned_partition_delivers_nothing_before_seek_and_resume(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"a"])
    pause_for(member)
    assert member.messages == []


def test_a_partition_delivers_from_the_offset_that_was_sought(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0", b"1", b"2", b"3"])
    member.read_from(2)
    poll_until([member], lambda: len(member.messages) >= 2, "two records")
    assert [(m.offset(), m.value()) for m in member.messages] == [(2, b"2"), (3, b"3")]


def test_records_of_a_partition_arrive_in_order_and_once(kafka: World) -> None:
    member = owner(kafka)
    values = [str(number).encode() for number in range(500)]
    member.read_from(0)
    kafka.write(member.names.input, values)
    poll_until([member], lambda: len(member.messages) >= 500, "all records")
    pause_for(member, 0.2)
    assert member.values() == values


def test_a_poll_returns_no_more_records_than_asked_for(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"a"] * 30)
    member.read_from(0)
    sizes: list[int] = []
    while sum(sizes) < 30:
        before = len(member.messages)
        member.poll(0.1, records=7)
        sizes.append(len(member.messages) - before)
    assert max(sizes) == 7


def test_a_poll_without_records_takes_its_timeout(kafka: World) -> None:
    member = owner(kafka)
    began = kafka.now()
    member.poll(0.5)
    assert 0.4 <= kafka.now() - began < 2.0


def test_a_poll_that_gets_fewer_records_than_asked_for_takes_its_timeout_too(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"a"])
    member.read_from(0)
    began = kafka.now()
    member.poll(1.0, records=10)
    assert kafka.now() - began >= 0.9


def test_a_paused_partition_delivers_nothing_until_it_is_resumed(kafka: World) -> None:
    member = owner(kafka)
    member.read_from(0)
    kafka.write(member.names.input, [b"a"])
    poll_until([member], lambda: len(member.messages) == 1, "a record")
    member.consumer.pause([0])
    kafka.write(member.names.input, [b"b"])
    pause_for(member)
    assert member.values() == [b"a"]
    member.consumer.resume([0])
    poll_until([member], lambda: member.values() == [b"a", b"b"], "the next record")


def test_a_pause_leaves_the_other_partitions_running(kafka: World) -> None:
    member = owner(kafka, 2)
    for partition in range(2):
        member.read_from(0, partition)
        kafka.write(member.names.input, [str(partition).encode()], partition)
    poll_until([member], lambda: len(member.messages) == 2, "a record each")
    member.consumer.pause([0])
    kafka.write(member.names.input, [b"paused"], 0)
    kafka.write(member.names.input, [b"running"], 1)
    poll_until([member], lambda: b"running" in member.values(), "the running partition")
    pause_for(member, 0.3)
    assert b"paused" not in member.values()


def test_the_consumer_gets_committed_records_only(kafka: World) -> None:
    member = owner(kafka)
    member.read_from(0)
    other = kafka.names()
    producer = kafka.producer(other)
    producer.begin()
    producer.send(sent(member.names.input, b"aborted"))
    producer.send_offsets({other.input: 1}, kafka.no_member(other))
    pause_for(member, 0.3)
    assert member.messages == []
    producer.abort()
    producer.begin()
    producer.send(sent(member.names.input, b"committed"))
    producer.commit()
    poll_until([member], lambda: len(member.messages) > 0, "the committed record")
    assert member.values() == [b"committed"]


def test_an_offset_that_was_deleted_is_an_event_and_stops_the_partition(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0", b"1", b"2"])
    kafka.offsets(member.names).delete_records(member.names.input, 0, 2)
    kafka.until(lambda: kafka.start(member.names.input) == 2, "the deletion")
    member.read_from(1)
    poll_until([member], lambda: any(t.out_of_range for t in member.troubles), "the event")
    trouble = next(t for t in member.troubles if t.out_of_range)
    assert (trouble.partition, trouble.topic) == (0, member.names.input)
    pause_for(member, 0.3)
    assert member.messages == []
    assert len([t for t in member.troubles if t.out_of_range]) == 1
    member.consumer.seek(0, 2)
    poll_until([member], lambda: member.values() == [b"2"], "the record after the seek")


def test_an_offset_behind_the_end_is_an_event_too(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0"])
    member.read_from(7)
    poll_until([member], lambda: any(t.out_of_range for t in member.troubles), "the event")
    assert member.messages == []


def test_an_offset_at_the_end_waits_for_the_next_record(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0"])
    member.read_from(1)
    pause_for(member, 0.3)
    kafka.write(member.names.input, [b"1"])
    poll_until([member], lambda: member.values() == [b"1"], "the next record")
    assert not any(t.out_of_range for t in member.troubles)


def test_a_seek_of_a_partition_that_is_not_assigned_is_an_error(kafka: World) -> None:
    member = owner(kafka)
    with pytest.raises(KafkaTrouble):
        member.consumer.seek(5, 0)


def test_pause_and_resume_of_a_partition_that_is_not_assigned_do_nothing(kafka: World) -> None:
    member = owner(kafka)
    member.consumer.pause([5])
    member.consumer.resume([5])


def test_a_record_that_was_read_may_be_sought_again(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0", b"1"])
    member.read_from(0)
    poll_until([member], lambda: len(member.messages) == 2, "both records")
    member.consumer.seek(0, 0)
    poll_until([member], lambda: len(member.messages) == 4, "both records again")
    assert member.values() == [b"0", b"1"] * 2


def test_the_input_has_the_topics_id_once_it_was_read(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0"])
    member.read_from(0)
    poll_until([member], lambda: len(member.messages) == 1, "the record")
    assert member.consumer.input.name == member.names.input
    assert member.consumer.input.id == kafka.topic_id(member.names.input)
    same = member.consumer.input
    pause_for(member, 0.2)
    assert member.consumer.input is same


def test_the_id_of_a_new_topic_is_known_with_its_first_record(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"old"])
    member.read_from(0)
    poll_until([member], lambda: len(member.messages) == 1, "the record")
    before = member.consumer.input
    kafka.delete(member.names.input)
    kafka.create(member.names.input)
    kafka.write(member.names.input, [b"new 0", b"new 1"])
    poll_until([member], lambda: len(member.messages) > 1, "a record of the new topic", 40)
    assert member.consumer.input is not before
    assert member.consumer.input.id == kafka.topic_id(member.names.input)
    # The client continues at the old offset of the new topic.
    assert member.values()[1:] == [b"new 1"]


def test_wake_restarts_at_the_offsets_that_it_gets(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0", b"1"])
    member.read_from(0)
    poll_until([member], lambda: len(member.messages) == 2, "both records")
    member.consumer.wake({0: 2})
    kafka.write(member.names.input, [b"2"])
    poll_until([member], lambda: len(member.messages) > 2, "the next record")
    assert member.values() == [b"0", b"1", b"2"]


def test_a_partition_that_left_and_came_back_waits_for_a_seek_again(kafka: World) -> None:
    member = owner(kafka)
    kafka.write(member.names.input, [b"0", b"1"])
    member.read_from(0)
    poll_until([member], lambda: len(member.messages) == 2, "both records")
    member.consumer.unassign([0])
    member.consumer.assign([0])
    pause_for(member)
    assert len(member.messages) == 2
    member.read_from(1)
    poll_until([member], lambda: len(member.messages) == 3, "the record")
    assert member.values() == [b"0", b"1", b"1"]
