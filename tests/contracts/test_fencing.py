"""Contracts of transactional ids: fencing, transaction time-outs, late copies of requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contracts.world import TRANSACTION, World, Writer

from statehold.errors import KafkaTrouble, OutcomeUnknown, ProducerFenced
from statehold.ports import Cancelled


def test_a_fence_aborts_the_transaction_that_an_older_producer_left_open(kafka: World) -> None:
    older = kafka.writer().open(b"a")
    older.port.drop()
    older.successor()
    assert older.bounds() == (0, 2)
    assert older.visible() == []


def test_a_fence_makes_the_pending_offsets_of_the_older_producer_vanish(kafka: World) -> None:
    older = kafka.writer().begin().send_offset(9)
    older.successor()
    assert older.committed() is None


@pytest.mark.parametrize("end", [Writer.commit, Writer.abort])
def test_a_fenced_producer_can_not_end_its_transaction(kafka: World, end: Callable[[Writer], None]) -> None:
    older = kafka.writer().open(b"a")
    older.successor()
    with pytest.raises(ProducerFenced):
        end(older)
    assert older.visible() == []


@pytest.mark.parametrize("what", ["records", "offsets"])
def test_a_fenced_producer_without_an_open_transaction_may_begin_one_and_commits_nothing(
    kafka: World, what: str
) -> None:
    older = kafka.writer()
    older.successor()
    older.begin()
    with pytest.raises(ProducerFenced):
        older.commit(b"a") if what == "records" else older.send_offset(5)
    assert (older.visible(), older.committed()) == ([], None)


def test_a_fenced_producer_may_commit_a_transaction_in_which_nothing_happened(kafka: World) -> None:
    older = kafka.writer()
    older.successor()
    older.begin().commit()


def test_records_that_a_fenced_producer_sends_never_become_visible(kafka: World) -> None:
    older = kafka.writer().open(b"a")
    newer = older.successor()
    with pytest.raises(KafkaTrouble):
        older.commit(b"zombie")
    newer.begin().commit(b"b")
    assert newer.sees(b"b")


def test_producers_of_two_partitions_do_not_fence_each_other(kafka: World) -> None:
    first = kafka.writer(kafka.names(2))
    second = kafka.writer(first.names, first.topic, 1)
    first.begin().commit(b"a")
    second.begin().commit(b"b")
    first.begin().commit(b"c")
    assert first.sees(b"a", b"b", b"c")


def test_the_newest_of_three_producers_with_one_id_is_the_only_one_that_commits(kafka: World) -> None:
    first = kafka.writer()
    second, third = first.successor(), first.successor()
    for older in (first, second):
        with pytest.raises(ProducerFenced):
            older.begin().commit(b"older")
    third.begin().commit(b"2")
    assert third.sees(b"2")


def test_a_fence_ends_when_it_is_cancelled(kafka: World) -> None:
    with pytest.raises(Cancelled):
        kafka.transactions(kafka.names()).fence(lambda: True)


def test_the_brokers_abort_a_transaction_that_outlives_its_timeout(kafka: World) -> None:
    producer = kafka.writer(transaction_timeout=TRANSACTION).open(b"a")
    kafka.pass_time(TRANSACTION / 2)
    assert producer.bounds() == (0, 0)
    kafka.until(lambda: producer.bounds() == (0, 2), "the marker of the abort")
    assert producer.visible() == []
    assert producer.committed() is None


def test_a_producer_whose_transaction_timed_out_is_fenced(kafka: World) -> None:
    producer = kafka.writer(transaction_timeout=TRANSACTION).open(b"a")
    producer.wait_for_end(2)
    with pytest.raises(ProducerFenced):
        producer.commit()


def test_a_new_producer_commits_after_the_transaction_of_the_older_one_timed_out(kafka: World) -> None:
    older = kafka.writer(transaction_timeout=TRANSACTION).open(b"a")
    older.wait_for_end(2)
    newer = older.successor()
    newer.begin().commit(b"b")
    assert newer.sees(b"b")


def test_an_idle_producer_is_not_fenced_by_the_transaction_timeout(kafka: World) -> None:
    producer = kafka.writer(transaction_timeout=TRANSACTION)
    kafka.pass_time(TRANSACTION + 1)
    producer.begin()
    kafka.pass_time(TRANSACTION + 1)  # nothing is in the transaction, so the brokers do not know of it
    producer.commit(b"a")
    assert producer.sees(b"a")


# A network may deliver a commit or abort request again after its copy was answered. The brokers cannot detect that,
# because librdkafka does not speak the newer protocol (KIP-890); see docs/explanation/assumptions.md.


def test_a_commit_succeeds_although_its_first_request_is_delayed_and_makes_its_producer_suspect(kafka: World) -> None:
    producer = kafka.writer().open(b"a")
    assert producer.port.suspicion == ""
    kafka.copy_next_end()
    producer.commit()
    assert producer.sees(b"a")
    assert producer.port.suspicion != ""


def test_a_late_copy_of_a_commit_makes_a_part_of_the_next_transaction_visible(kafka: World) -> None:
    producer = kafka.writer().open(b"1")
    deliver = kafka.copy_next_end()
    producer.commit()
    producer.open(b"2 header", position=2)
    deliver()
    assert producer.sees(b"1", b"2 header")
    with pytest.raises(OutcomeUnknown):
        producer.commit(b"2 commit record")
    assert producer.sees(b"1", b"2 header")


def test_a_late_copy_of_an_abort_takes_away_a_part_of_the_next_transaction(kafka: World) -> None:
    producer = kafka.writer().open(b"1")
    deliver = kafka.copy_next_end()
    producer.abort()
    producer.open(b"2 header", position=2)
    deliver()
    with pytest.raises(OutcomeUnknown):
        producer.commit(b"2 commit record")
    assert producer.visible() == []
    assert producer.committed() is None


def test_a_late_copy_of_a_commit_does_nothing_to_an_idle_producer(kafka: World) -> None:
    producer = kafka.writer().open(b"a")
    deliver = kafka.copy_next_end()
    producer.commit()
    deliver()
    producer.begin().commit(b"b")
    assert producer.sees(b"a", b"b")
    assert producer.end() == 4


def test_a_fence_makes_a_late_copy_harmless(kafka: World) -> None:
    older = kafka.writer().open(b"1")
    deliver = kafka.copy_next_end()
    older.commit()
    newer = older.successor().open(b"2 header", position=2)
    deliver()
    kafka.pass_time(0.2)
    assert newer.sees(b"1")
    newer.commit(b"2 commit record")
    assert newer.sees(b"1", b"2 header", b"2 commit record")
