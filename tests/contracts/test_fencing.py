"""Contracts of transactional ids: fencing, transaction time-outs, late copies of requests."""

from __future__ import annotations

import pytest
from tests.contracts.world import TRANSACTION, World, sent

from statehold.errors import KafkaTrouble, OutcomeUnknown, ProducerFenced
from statehold.ports import Cancelled, Transactions


def send_and_commit(producer: Transactions, topic: str, value: bytes) -> None:
    producer.send(sent(topic, value))
    producer.commit()


def test_a_fence_aborts_the_transaction_that_an_older_producer_left_open(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    older.drop()
    kafka.producer(names)
    assert kafka.following_reader().bounds(topic, 0) == (0, 2)
    assert kafka.visible(topic) == []


def test_a_fence_makes_the_pending_offsets_of_the_older_producer_vanish(kafka: World) -> None:
    names = kafka.names()
    older = kafka.producer(names)
    older.begin()
    older.send_offsets({names.input: 9}, kafka.no_member(names))
    kafka.producer(names)
    assert kafka.offsets(names).committed(names.input, 0) is None


def test_a_fenced_producer_cannot_commit(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.producer(names)
    with pytest.raises(ProducerFenced):
        older.commit()
    assert kafka.visible(topic) == []


def test_a_fenced_producer_cannot_abort(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.producer(names)
    with pytest.raises(ProducerFenced):
        older.abort()


def test_a_fenced_producer_cannot_send_offsets(kafka: World) -> None:
    names = kafka.names()
    older = kafka.producer(names)
    kafka.producer(names)
    older.begin()
    with pytest.raises(ProducerFenced):
        older.send_offsets({names.input: 5}, kafka.no_member(names))
    assert kafka.offsets(names).committed(names.input, 0) is None


def test_a_fenced_producer_without_an_open_transaction_may_begin_and_cannot_commit_records(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names)
    kafka.producer(names)
    older.begin()
    with pytest.raises(ProducerFenced):
        send_and_commit(older, topic, b"a")
    assert kafka.visible(topic) == []


def test_a_fenced_producer_may_commit_a_transaction_in_which_nothing_happened(kafka: World) -> None:
    names = kafka.names()
    older = kafka.producer(names)
    kafka.producer(names)
    older.begin()
    older.commit()


def test_records_that_a_fenced_producer_sends_never_become_visible(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    newer = kafka.producer(names)
    with pytest.raises(KafkaTrouble):
        send_and_commit(older, topic, b"zombie")
    newer.begin()
    newer.send(sent(topic, b"b"))
    newer.commit()
    assert kafka.sees(topic, b"b")


def test_producers_of_two_partitions_do_not_fence_each_other(kafka: World) -> None:
    names, topic = kafka.names(2), kafka.topic()
    first, second = kafka.producer(names, 0), kafka.producer(names, 1)
    for producer, value in ((first, b"a"), (second, b"b"), (first, b"c")):
        producer.begin()
        producer.send(sent(topic, value))
        producer.commit()
    assert kafka.sees(topic, b"a", b"b", b"c")


def test_the_newest_of_three_producers_with_one_id_is_the_only_one_that_commits(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producers = [kafka.producer(names) for _ in range(3)]
    outcomes = []
    for number, producer in enumerate(producers):
        try:
            producer.begin()
            producer.send(sent(topic, str(number).encode()))
            producer.commit()
            outcomes.append(True)
        except ProducerFenced:
            outcomes.append(False)
    assert outcomes == [False, False, True]
    assert kafka.sees(topic, b"2")


def test_a_fence_ends_when_it_is_cancelled(kafka: World) -> None:
    producer = kafka.transactions(kafka.names())
    with pytest.raises(Cancelled):
        producer.fence(lambda: True)


def test_the_brokers_abort_a_transaction_that_outlives_its_timeout(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names, transaction_timeout=TRANSACTION)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.pass_time(TRANSACTION / 2)
    assert kafka.following_reader().bounds(topic, 0) == (0, 0)
    kafka.until(lambda: kafka.following_reader().bounds(topic, 0) == (0, 2), "the marker of the abort")
    assert kafka.visible(topic) == []
    assert kafka.offsets(names).committed(names.input, 0) is None


def test_a_producer_whose_transaction_timed_out_is_fenced(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names, transaction_timeout=TRANSACTION)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.until(lambda: kafka.end(topic) == 2, "the marker of the abort")
    with pytest.raises(ProducerFenced):
        producer.commit()


def test_a_new_producer_commits_after_the_transaction_of_the_older_one_timed_out(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    older = kafka.producer(names, transaction_timeout=TRANSACTION)
    older.begin()
    older.send(sent(topic, b"a"))
    older.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.until(lambda: kafka.end(topic) == 2, "the marker of the abort")
    newer = kafka.producer(names)
    newer.begin()
    newer.send(sent(topic, b"b"))
    newer.commit()
    assert kafka.sees(topic, b"b")


def test_an_idle_producer_is_not_fenced_by_the_transaction_timeout(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names, transaction_timeout=TRANSACTION)
    kafka.pass_time(TRANSACTION + 1)
    producer.begin()
    kafka.pass_time(TRANSACTION + 1)  # nothing is in the transaction, so the brokers do not know of it
    producer.send(sent(topic, b"a"))
    producer.commit()
    assert kafka.sees(topic, b"a")


# A network may deliver a commit or abort request again after its copy was answered. The brokers cannot detect that,
# because librdkafka does not speak the newer protocol (KIP-890); see docs/explanation/assumptions.md.


def test_a_commit_succeeds_although_its_first_request_is_delayed(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    kafka.copy_next_end()
    producer.commit()
    assert kafka.sees(topic, b"a")


def test_a_producer_whose_commit_was_sent_twice_is_suspect(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    assert producer.suspicion == ""
    kafka.copy_next_end()
    producer.commit()
    assert producer.suspicion != ""


def test_a_late_copy_of_a_commit_makes_a_part_of_the_next_transaction_visible(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"1"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    deliver = kafka.copy_next_end()
    producer.commit()
    producer.begin()
    producer.send(sent(topic, b"2 header"))
    producer.send_offsets({names.input: 2}, kafka.no_member(names))
    deliver()
    assert kafka.sees(topic, b"1", b"2 header")
    with pytest.raises(OutcomeUnknown):
        send_and_commit(producer, topic, b"2 commit record")
    assert kafka.sees(topic, b"1", b"2 header")


def test_a_late_copy_of_an_abort_takes_away_a_part_of_the_next_transaction(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"1"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    deliver = kafka.copy_next_end()
    producer.abort()
    producer.begin()
    producer.send(sent(topic, b"2 header"))
    producer.send_offsets({names.input: 2}, kafka.no_member(names))
    deliver()
    with pytest.raises(OutcomeUnknown):
        send_and_commit(producer, topic, b"2 commit record")
    assert kafka.visible(topic) == []
    assert kafka.offsets(names).committed(names.input, 0) is None


def test_a_late_copy_of_a_commit_does_nothing_to_an_idle_producer(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    deliver = kafka.copy_next_end()
    producer.commit()
    deliver()
    producer.begin()
    producer.send(sent(topic, b"b"))
    producer.commit()
    assert kafka.sees(topic, b"a", b"b")
    assert kafka.end(topic) == 4


def test_a_fence_makes_a_late_copy_harmless(kafka: World) -> None:
    names, topic = kafka.names(), kafka.topic()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"1"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    deliver = kafka.copy_next_end()
    producer.commit()
    newer = kafka.producer(names)
    newer.begin()
    newer.send(sent(topic, b"2 header"))
    newer.send_offsets({names.input: 2}, kafka.no_member(names))
    deliver()
    kafka.pass_time(0.2)
    assert kafka.sees(topic, b"1")
    newer.send(sent(topic, b"2 commit record"))
    newer.commit()
    assert kafka.sees(topic, b"1", b"2 header", b"2 commit record")
