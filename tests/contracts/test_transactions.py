"""Contracts of transactions: visibility, markers, order, offsets, rejected records."""

from __future__ import annotations

import pytest
from tests.contracts.world import World, sent

from statehold.api.record import Message
from statehold.common.partitioner import murmur2
from statehold.errors import MessageRefused


def read(kafka: World, topic: str, end: int) -> list[Message]:
    return [message for batch in kafka.reader().read(topic, 0, 0, end) for message in batch]


def test_the_records_of_a_transaction_become_visible_with_its_commit(kafka: World) -> None:
    producer = kafka.writer().open(b"a", b"b")
    assert producer.end() == 2
    assert producer.visible() == []
    producer.commit()
    assert producer.sees(b"a", b"b")


def test_the_records_of_an_aborted_transaction_never_become_visible(kafka: World) -> None:
    producer = kafka.writer().open(b"a")
    producer.abort()
    producer.begin().commit(b"b")
    assert producer.sees(b"b")


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_the_marker_of_a_transaction_takes_one_offset_in_each_of_its_partitions(kafka: World, commits: bool) -> None:
    topic = kafka.topic(2)
    producer = kafka.writer(topic=topic).open(b"a", b"b", also=sent(topic, b"c", partition=1))
    producer.commit() if commits else producer.abort()
    producer.wait_for_end(3, partition=0)
    producer.wait_for_end(2, partition=1)


def test_a_partition_that_a_transaction_did_not_reach_gets_no_marker(kafka: World) -> None:
    producer = kafka.writer(topic=kafka.topic(2))
    producer.begin().send(b"a", partition=1).commit()
    producer.wait_for_end(2, partition=1)
    assert producer.end(0) == 0


def test_a_transaction_without_records_and_offsets_writes_nothing(kafka: World) -> None:
    producer = kafka.writer()
    producer.begin().commit()
    producer.begin().abort()
    assert kafka.end(producer.names.changelog) == 0


def test_records_keep_the_order_in_which_they_were_sent_to_a_partition(kafka: World) -> None:
    producer = kafka.writer()
    values = [str(number).encode() for number in range(300)]
    for begin in range(0, 300, 100):
        producer.begin().commit(*values[begin : begin + 100])
    assert producer.sees(*values)


def test_a_transaction_over_several_topics_becomes_visible_in_all_of_them(kafka: World) -> None:
    producer, other = kafka.writer().begin(), kafka.topic(3)
    changelog = producer.names.changelog
    producer.port.send(sent(producer.topic, b"a") + sent(other, b"b", partition=2))
    producer.port.send_increment(changelog, 0, b"c")
    producer.commit()
    assert producer.sees(b"a")
    assert kafka.sees(other, b"b", partition=2)
    assert kafka.sees(changelog, b"c")


def test_transactions_of_two_producers_interleave_in_a_partition(kafka: World) -> None:
    first = kafka.writer(kafka.names(2)).open(b"a")
    second = kafka.writer(first.names, first.topic, 1).open(b"b")
    first.port.send_increment(first.topic, 0, b"c")
    first.commit()
    second.commit()
    assert first.sees(b"a", b"b", b"c")
    assert first.end() == 5


def test_committed_records_behind_an_open_transaction_wait_for_its_end(kafka: World) -> None:
    older = kafka.writer(kafka.names(2))
    newer = kafka.writer(older.names, older.topic, 1)
    older.open(b"a")
    newer.begin().commit(b"b")
    assert newer.visible() == []
    older.abort()
    kafka.until(lambda: newer.visible() == [b"b"], "the newer transaction")


def test_records_outside_of_transactions_wait_for_an_open_one_before_them_too(kafka: World) -> None:
    producer = kafka.writer().open(b"a")
    assert kafka.write(producer.topic, [b"b"]) == [1]
    assert producer.visible() == []
    producer.commit()
    assert producer.sees(b"a", b"b")


def test_the_outputs_are_in_the_log_when_the_offsets_are_sent(kafka: World) -> None:
    topic = kafka.topic(2)
    producer = kafka.writer(topic=topic).open(b"a", also=sent(topic, b"b", partition=1))
    assert (producer.end(0), producer.end(1)) == (1, 1)


def test_a_transaction_with_offsets_alone_commits_them_and_writes_no_record(kafka: World) -> None:
    producer = kafka.writer().begin().send_offset(7)
    producer.commit()
    assert producer.committed() == 7
    assert kafka.end(producer.names.changelog) == 0


def test_the_producer_rejects_a_record_that_is_too_large_and_continues_after_an_abort(kafka: World) -> None:
    producer = kafka.writer().begin().send(b"a")
    with pytest.raises(MessageRefused):
        producer.send(bytes(1_100_000))
    producer.abort()
    producer.begin().commit(b"b")
    assert producer.sees(b"b")


def test_the_producer_rejects_a_record_for_a_partition_that_does_not_exist(kafka: World) -> None:
    producer = kafka.writer()
    producer.begin().commit(b"a")  # knows the topic now
    producer.begin()
    with pytest.raises(MessageRefused):
        producer.send(b"b", partition=5)


def test_a_record_keeps_key_value_headers_and_timestamp(kafka: World) -> None:
    topic, now = kafka.topic(retention_ms="-1"), 1_750_000_000_123
    producer = kafka.writer(topic=topic).begin()
    headers = [("h", b"1"), ("h", b"2")]
    keyed, keyless = (
        (topic, b"value", b"key", 0, None, None, now, headers),
        (topic, None, "text", 0, None, None, now + 1, None),
    )
    producer.port.send([keyed, keyless])
    producer.commit()
    first, second = read(kafka, topic, 2)
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert first.timestamp() == (1, now)
    assert (second.key(), second.value(), second.timestamp()[1]) == (b"text", None, now + 1)
    assert (first.topic(), first.partition(), first.offset(), second.offset()) == (topic, 0, 0, 1)


def test_a_record_without_a_timestamp_gets_the_time_of_the_producer(kafka: World) -> None:
    producer = kafka.writer().begin().send(b"a")
    kafka.pass_time(0.3)
    producer.commit(b"b")
    first, second = read(kafka, producer.topic, 2)
    assert 290 <= second.timestamp()[1] - first.timestamp()[1] < 5000


def test_a_topic_with_log_append_time_replaces_the_timestamp(kafka: World) -> None:
    producer = kafka.writer(topic=kafka.topic(message_timestamp_type="LogAppendTime")).begin()
    producer.port.send([(producer.topic, b"a", None, 0, None, None, 1_000_000_000_000, None)])
    producer.commit()
    (message,) = read(kafka, producer.topic, 1)
    assert message.timestamp()[0] == 2
    assert message.timestamp()[1] > 1_700_000_000_000


def test_a_record_without_a_partition_goes_where_its_key_says(kafka: World) -> None:
    topic, keys = kafka.topic(3), [f"key {number}".encode() for number in range(12)]
    producer = kafka.writer(topic=topic).begin()
    for key in keys:
        producer.port.send(sent(topic, key, partition=-1, key=key))
    producer.commit()
    for partition in range(3):
        assert kafka.sees(topic, *(key for key in keys if murmur2(key, 3) == partition), partition=partition)


def test_a_dropped_producer_leaves_its_transaction_open(kafka: World) -> None:
    producer = kafka.writer().open(b"a")
    producer.port.drop()
    kafka.write(producer.topic, [b"b"])
    kafka.pass_time(0.5)
    assert producer.bounds() == (0, 0)
    assert producer.end() == 2


def test_one_producer_writes_many_transactions_with_consecutive_markers(kafka: World) -> None:
    producer = kafka.writer()
    changelog = producer.names.changelog
    for number in range(20):
        producer.begin().port.send_increment(changelog, 0, str(number).encode())
        producer.commit()
    kafka.until(lambda: kafka.end(changelog) == 40, "the last marker")
    assert [message.offset() for message in read(kafka, changelog, 40)] == list(range(0, 40, 2))
