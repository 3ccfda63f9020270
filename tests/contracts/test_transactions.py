"""Contracts of transactions: visibility, markers, order, offsets, rejected records."""

from __future__ import annotations

import pytest
from tests.contracts.world import World, sent

from statehold.common.partitioner import murmur2
from statehold.errors import MessageRefused


def test_the_records_of_a_transaction_become_visible_with_its_commit(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a", b"b"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    assert kafka.end(topic) == 2
    assert kafka.visible(topic) == []
    producer.commit()
    assert kafka.sees(topic, b"a", b"b")


def test_the_records_of_an_aborted_transaction_never_become_visible(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    producer.abort()
    producer.begin()
    producer.send(sent(topic, b"b"))
    producer.commit()
    assert kafka.sees(topic, b"b")


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_the_marker_of_a_transaction_takes_one_offset_in_each_of_its_partitions(kafka: World, commits: bool) -> None:
    names, topic = kafka.names(), kafka.topic(2)
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a", b"b", partition=0) + sent(topic, b"c", partition=1))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    producer.commit() if commits else producer.abort()
    kafka.until(lambda: kafka.end(topic, 0) == 3, "the marker behind two records")
    kafka.until(lambda: kafka.end(topic, 1) == 2, "the marker behind one record")


def test_a_partition_that_a_transaction_did_not_reach_gets_no_marker(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic(2)
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a", partition=1))
    producer.commit()
    kafka.until(lambda: kafka.end(topic, 1) == 2, "the marker")
    assert kafka.end(topic, 0) == 0


def test_a_transaction_without_records_and_offsets_writes_nothing(kafka: World) -> None:
    names = kafka.names()
    producer = kafka.producer(names)
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    assert kafka.end(names.changelog) == 0


def test_records_keep_the_order_in_which_they_were_sent_to_a_partition(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    values = [str(number).encode() for number in range(300)]
    for begin in range(0, 300, 100):
        producer.begin()
        producer.send(sent(topic, *values[begin : begin + 100]))
        producer.commit()
    assert kafka.sees(topic, *values)


def test_a_transaction_over_several_topics_becomes_visible_in_all_of_them(kafka: World) -> None:
    names, topic, other = kafka.names(), kafka.topic(), kafka.topic(3)
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a") + sent(other, b"b", partition=2))
    producer.send_increment(names.changelog, 0, b"c")
    producer.commit()
    assert kafka.sees(topic, b"a")
    assert kafka.sees(other, b"b", partition=2)
    assert kafka.sees(names.changelog, b"c")


def test_transactions_of_two_producers_interleave_in_a_partition(kafka: World) -> None:
    names, topic = kafka.names(2), kafka.topic()
    first, second = kafka.producer(names, 0), kafka.producer(names, 1)
    for producer, value in ((first, b"a"), (second, b"b")):
        producer.begin()
        producer.send(sent(topic, value))
        producer.send_offsets({names.input: 1}, kafka.no_member(names))
    first.send_increment(topic, 0, b"c")
    first.commit()
    second.commit()
    assert kafka.sees(topic, b"a", b"b", b"c")
    assert kafka.end(topic) == 5


def test_committed_records_behind_an_open_transaction_wait_for_its_end(kafka: World) -> None:
    names, topic = kafka.names(2), kafka.topic()
    older, newer = kafka.producer(names, 0), kafka.producer(names, 1)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    newer.begin()
    newer.send(sent(topic, b"b"))
    newer.commit()
    assert kafka.visible(topic) == []
    older.abort()
    kafka.until(lambda: kafka.visible(topic) == [b"b"], "the newer transaction")


def test_records_outside_of_transactions_wait_for_an_open_one_before_them_too(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    assert kafka.write(topic, [b"b"]) == [1]
    assert kafka.visible(topic) == []
    producer.commit()
    assert kafka.sees(topic, b"a", b"b")


def test_the_outputs_are_in_the_log_when_the_offsets_are_sent(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic(2)
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a", partition=0) + sent(topic, b"b", partition=1))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    assert (kafka.end(topic, 0), kafka.end(topic, 1)) == (1, 1)


def test_a_transaction_with_offsets_alone_commits_them_and_writes_no_record(kafka: World) -> None:
    names = kafka.names()
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 7}, kafka.no_member(names))
    producer.commit()
    assert kafka.offsets(names).committed(names.input, 0) == 7
    assert kafka.end(names.changelog) == 0


def test_the_producer_rejects_a_record_that_is_too_large_and_continues_after_an_abort(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    with pytest.raises(MessageRefused):
        producer.send(sent(topic, bytes(1_100_000)))
    producer.abort()
    producer.begin()
    producer.send(sent(topic, b"b"))
    producer.commit()
    assert kafka.sees(topic, b"b")


def test_the_producer_rejects_a_record_for_a_partition_that_does_not_exist(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.commit()  # knows the topic now
    producer.begin()
    with pytest.raises(MessageRefused):
        producer.send(sent(topic, b"b", partition=5))


def test_a_record_keeps_key_value_headers_and_timestamp(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic(retention_ms="-1")
    producer = kafka.producer(names)
    producer.begin()
    now = 1_750_000_000_123
    producer.send(
        [
            (topic, b"value", b"key", 0, None, None, now, [("h", b"1"), ("h", b"2")]),
            (topic, None, "text", 0, None, None, now + 1, None),
        ]
    )
    producer.commit()
    first, second = [message for batch in kafka.reader().read(topic, 0, 0, 2) for message in batch]
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", [("h", b"1"), ("h", b"2")])
    assert first.timestamp() == (1, now)
    assert (second.key(), second.value(), second.timestamp()[1]) == (b"text", None, now + 1)
    assert (first.topic(), first.partition(), first.offset(), second.offset()) == (topic, 0, 0, 1)


def test_a_record_without_a_timestamp_gets_the_time_of_the_producer(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    kafka.pass_time(0.3)
    producer.send(sent(topic, b"b"))
    producer.commit()
    first, second = [message for batch in kafka.reader().read(topic, 0, 0, 2) for message in batch]
    assert 290 <= second.timestamp()[1] - first.timestamp()[1] < 5000


def test_a_topic_with_log_append_time_replaces_the_timestamp(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic(message_timestamp_type="LogAppendTime")
    producer = kafka.producer(names)
    producer.begin()
    producer.send([(topic, b"a", None, 0, None, None, 1_000_000_000_000, None)])
    producer.commit()
    (message,) = [message for batch in kafka.reader().read(topic, 0, 0, 1) for message in batch]
    assert message.timestamp()[0] == 2
    assert message.timestamp()[1] > 1_700_000_000_000


def test_a_record_without_a_partition_goes_where_its_key_says(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic(3)
    producer = kafka.producer(names)
    producer.begin()
    keys = [f"key {number}".encode() for number in range(12)]
    for key in keys:
        producer.send(sent(topic, key, partition=-1, key=key))
    producer.commit()
    for partition in range(3):
        assert kafka.sees(topic, *(key for key in keys if murmur2(key, 3) == partition), partition=partition)


def test_a_dropped_producer_leaves_its_transaction_open(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    producer.drop()
    kafka.write(topic, [b"b"])
    kafka.pass_time(0.5)
    assert kafka.following_reader().bounds(topic, 0) == (0, 0)
    assert kafka.end(topic) == 2


def test_one_producer_writes_many_transactions_with_consecutive_markers(kafka: World) -> None:
    names = kafka.names()
    producer = kafka.producer(names)
    for number in range(20):
        producer.begin()
        producer.send_increment(names.changelog, 0, str(number).encode())
        producer.commit()
    kafka.until(lambda: kafka.end(names.changelog) == 40, "the last marker")
    messages = [message for batch in kafka.reader().read(names.changelog, 0, 0, 40) for message in batch]
    assert [message.offset() for message in messages] == list(range(0, 40, 2))
