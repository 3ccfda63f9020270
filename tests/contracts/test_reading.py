"""Contracts of readers without a group: bounds, ends, isolation, deleted and missing offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contracts.world import HANGING, World, sent

from statehold.errors import HangingTransaction, TopicMissing
from statehold.ports import Cancelled, OutOfRange, Reader, Transactions


def read(reader: Reader, topic: str, start: int, end: int) -> list[bytes]:
    return [message.value() for batch in reader.read(topic, 0, start, end) for message in batch]


def open_transaction(kafka: World, topic: str, *values: bytes) -> Transactions:
    """Leave a transaction open whose records are in the log."""
    names = kafka.names()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, *values))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    return producer


def test_a_new_partition_is_empty(kafka: World) -> None:
    topic = kafka.topic()
    assert kafka.reader().bounds(topic, 0) == kafka.following_reader().bounds(topic, 0) == (0, 0)


def test_the_bounds_of_a_reader_include_open_transactions(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a"])
    open_transaction(kafka, topic, b"b", b"c")
    assert kafka.reader().bounds(topic, 0) == (0, 3)


def test_the_bounds_of_a_following_reader_end_at_the_oldest_open_transaction(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a"])
    open_transaction(kafka, topic, b"b", b"c")
    open_transaction(kafka, topic, b"d")
    assert kafka.following_reader().bounds(topic, 0) == (0, 1)


def test_one_question_returns_the_stable_ends_of_several_partitions(kafka: World) -> None:
    topic = kafka.topic(3)
    kafka.write(topic, [b"a", b"b"], partition=0)
    kafka.write(topic, [b"c"], partition=2)
    assert kafka.following_reader().ends(topic, [0, 1, 2]) == {0: 2, 1: 0, 2: 1}


def test_a_read_returns_what_is_between_two_offsets(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"0", b"1", b"2", b"3"])
    assert read(kafka.reader(), topic, 1, 3) == [b"1", b"2"]


def test_a_read_of_nothing_returns_nothing_at_once(kafka: World) -> None:
    topic = kafka.topic()
    assert read(kafka.reader(), topic, 0, 0) == []
    assert read(kafka.reader(), topic, 7, 7) == []


def test_a_read_ends_behind_a_marker(kafka: World) -> None:
    topic = kafka.topic()
    open_transaction(kafka, topic, b"a").commit()
    assert read(kafka.reader(), topic, 0, 2) == [b"a"]


def test_a_read_of_a_marker_alone_returns_nothing(kafka: World) -> None:
    topic = kafka.topic()
    open_transaction(kafka, topic, b"a").commit()
    assert read(kafka.reader(), topic, 1, 2) == []


def test_a_read_over_aborted_records_alone_returns_nothing_and_ends(kafka: World) -> None:
    topic = kafka.topic()
    open_transaction(kafka, topic, b"a", b"b").abort()
    kafka.until(lambda: kafka.end(topic) == 3, "the marker")
    assert read(kafka.reader(), topic, 0, 3) == []


def test_a_read_with_read_committed_skips_aborted_records_between_committed_ones(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a"])
    open_transaction(kafka, topic, b"b").abort()
    kafka.until(lambda: kafka.end(topic) == 3, "the marker")
    kafka.write(topic, [b"c"])
    assert read(kafka.reader(), topic, 0, 4) == [b"a", b"c"]


def test_batches_of_a_read_are_no_larger_than_asked_for(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a"] * 25)
    sizes = [len(batch) for batch in kafka.reader().read(topic, 0, 0, 25, most=10)]
    assert sum(sizes) == 25
    assert max(sizes) <= 10


def test_a_reader_with_read_committed_stops_below_the_oldest_open_transaction(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a", b"b"])
    open_transaction(kafka, topic, b"c")
    found: list[bytes] = []
    began = kafka.now()
    with pytest.raises(HangingTransaction) as raised:
        found.extend(m.value() for batch in kafka.reader().read(topic, 0, 0, 3) for m in batch)
    assert found == [b"a", b"b"]
    assert raised.value.position == 2
    assert kafka.now() - began >= HANGING


def test_a_read_waits_for_a_transaction_that_commits_meanwhile(kafka: World) -> None:
    topic = kafka.topic()
    producer = open_transaction(kafka, topic, b"a")
    kafka.later(HANGING / 2, producer.commit)
    assert read(kafka.reader(), topic, 0, 1) == [b"a"]


def test_a_read_waits_for_a_transaction_that_aborts_meanwhile(kafka: World) -> None:
    topic = kafka.topic()
    producer = open_transaction(kafka, topic, b"a")
    kafka.write(topic, [b"b"])
    kafka.later(HANGING / 2, producer.abort)
    assert read(kafka.reader(), topic, 0, 2) == [b"b"]


def test_a_cancelled_read_ends(kafka: World) -> None:
    topic = kafka.topic()
    open_transaction(kafka, topic, b"a")
    cancels = iter([False, False, *[True] * 1000])
    with pytest.raises(Cancelled):
        read(kafka.reader(cancelled=lambda: next(cancels)), topic, 0, 1)


def test_a_read_from_a_deleted_offset_is_out_of_range(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1", b"2"])
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")
    with pytest.raises(OutOfRange):
        read(kafka.reader(), names.input, 0, 3)
    assert read(kafka.reader(), names.input, 2, 3) == [b"2"]


def test_a_read_from_behind_the_end_is_out_of_range(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"0"])
    with pytest.raises(OutOfRange):
        read(kafka.reader(), topic, 5, 9)


def test_the_bounds_of_a_missing_topic_are_an_error(kafka: World) -> None:
    with pytest.raises(TopicMissing):
        kafka.reader().bounds("missing", 0)


def test_a_reader_reads_two_topics_in_turn(kafka: World) -> None:
    first, second = kafka.topic(), kafka.topic()
    kafka.write(first, [b"a"])
    kafka.write(second, [b"b"])
    reader = kafka.reader()
    assert [read(reader, topic, 0, 1) for topic in (first, second, first)] == [[b"a"], [b"b"], [b"a"]]


def test_a_read_that_is_left_early_leaves_the_reader_usable(kafka: World) -> None:
    topic = kafka.topic()
    kafka.write(topic, [b"a"] * 50)
    reader = kafka.reader()
    batches: Iterator[object] = iter(reader.read(topic, 0, 0, 50, most=5))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(read(reader, topic, 0, 50)) == 50


def test_deleted_records_move_the_start_and_not_the_end(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1", b"2"])
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")
    assert kafka.end(names.input) == 3
    assert kafka.write(names.input, [b"3"]) == [3]


def test_a_deletion_of_everything_leaves_an_empty_log_that_continues_at_its_end(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1"])
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")
    assert kafka.reader().bounds(names.input, 0) == (2, 2)


def test_a_deletion_behind_the_end_deletes_nothing(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1"])
    kafka.offsets(names).delete_records(names.input, 0, 10)
    kafka.pass_time(0.5)
    assert kafka.reader().bounds(names.input, 0) == (0, 2)


def test_a_deletion_never_moves_the_start_back(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1", b"2"])
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")
    kafka.offsets(names).delete_records(names.input, 0, 1)
    kafka.offsets(names).delete_records(names.input, 0, -1)
    kafka.pass_time(0.5)
    assert kafka.start(names.input) == 2


def test_a_deletion_takes_also_records_of_an_open_transaction(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0"])
    open_transaction(kafka, names.input, b"1", b"2")
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")


def test_retention_deletes_records_that_are_too_old(kafka: World) -> None:
    topic = kafka.topic(retention_ms="1000", segment_ms="200")
    old = kafka.write(topic, [b"0", b"1"])
    kafka.pass_time(0.5)
    kafka.write(topic, [b"2"])
    assert old == [0, 1]
    kafka.until(lambda: kafka.start(topic) >= 2, "retention", 40)
