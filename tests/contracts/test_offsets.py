"""Contracts of committed offsets: stable reads, metadata, membership, questions without waiting."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.world import World, sent

from statehold.errors import KafkaTrouble
from statehold.ports import Bounds, Noted


def commit_offset(kafka: World, names: Any, position: int, partition: int = 0, generation: str = "g n=1") -> None:
    producer = kafka.producer(names, partition)
    producer.lineage = generation
    producer.begin()
    producer.send_offsets({names.input: position}, kafka.no_member(names))
    producer.commit()
    producer.drop()


def test_a_group_without_offsets_has_none(kafka: World) -> None:
    names = kafka.names()
    assert kafka.offsets(names).committed(names.input, 0) is None
    assert kafka.offsets(names).lineages(names.input, 1) == {}


def test_offsets_count_from_the_commit_of_their_transaction(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 5)
    assert kafka.offsets(names).committed(names.input, 0) == 5


def test_offsets_of_an_aborted_transaction_do_not_count(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 5)
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 9}, kafka.no_member(names))
    producer.abort()
    assert kafka.offsets(names).committed(names.input, 0) == 5


def test_the_last_offsets_of_a_transaction_count(kafka: World) -> None:
    names = kafka.names()
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 5}, kafka.no_member(names))
    producer.send_offsets({names.input: 6}, kafka.no_member(names))
    producer.commit()
    assert kafka.offsets(names).committed(names.input, 0) == 6


def test_an_offset_may_go_back(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 9)
    commit_offset(kafka, names, 3)
    assert kafka.offsets(names).committed(names.input, 0) == 3


def test_a_stable_offset_waits_for_an_open_transaction(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 5)
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 9}, kafka.no_member(names))
    began = kafka.now()
    kafka.later(1.0, producer.commit)
    assert kafka.offsets(names).committed(names.input, 0) == 9
    assert kafka.now() - began >= 0.9


def test_an_open_transaction_hides_only_the_offsets_of_its_own_partitions(kafka: World) -> None:
    names = kafka.names(2)
    commit_offset(kafka, names, 5, partition=1)
    producer = kafka.producer(names, 0)
    producer.begin()
    producer.send_offsets({names.input: 9}, kafka.no_member(names))
    began = kafka.now()
    assert kafka.offsets(names).committed(names.input, 1) == 5
    assert kafka.now() - began < 5


def test_the_metadata_of_offsets_is_read_without_waiting_for_open_transactions(kafka: World) -> None:
    names = kafka.names(2)
    commit_offset(kafka, names, 5, generation="first n=7")
    producer = kafka.producer(names)
    producer.lineage = "second n=8"
    producer.begin()
    producer.send_offsets({names.input: 9}, kafka.no_member(names))
    assert kafka.offsets(names).lineages(names.input, 2) == {0: Noted("first", 7)}
    producer.commit()
    kafka.until(lambda: kafka.offsets(names).lineages(names.input, 2) == {0: Noted("second", 8)}, "the commit")


def test_a_tool_sets_offsets_of_several_partitions_in_one_transaction(kafka: World) -> None:
    names = kafka.names(3)
    producer = kafka.producer(names)
    producer.begin()
    producer.send_all_offsets({(names.input, 0): 1, (names.input, 2): 3}, kafka.no_member(names), "tool")
    producer.commit()
    offsets = kafka.offsets(names)
    assert [offsets.committed(names.input, partition) for partition in range(3)] == [1, None, 3]
    assert offsets.lineages(names.input, 3) == {0: Noted("tool"), 2: Noted("tool")}


def test_two_groups_have_offsets_of_their_own(kafka: World) -> None:
    names, others = kafka.names(), kafka.names()
    commit_offset(kafka, names, 5)
    assert kafka.offsets(others).committed(names.input, 0) is None


def test_offsets_survive_the_deletion_of_their_records(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.input, [b"0", b"1"])
    commit_offset(kafka, names, 1)
    kafka.offsets(names).delete_records(names.input, 0, 2)
    kafka.until(lambda: kafka.start(names.input) == 2, "the deletion")
    assert kafka.offsets(names).committed(names.input, 0) == 1


def test_the_deletion_of_a_topic_deletes_the_offsets_that_groups_have_of_it(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 5)
    kafka.delete(names.input)
    kafka.create(names.input)
    kafka.until(lambda: kafka.offsets(names).committed(names.input, 0) is None, "the offsets' end")


def test_a_question_for_bounds_does_not_wait(kafka: World) -> None:
    names = kafka.names()
    kafka.write(names.changelog, [b"a", b"b"])
    kafka.write(names.snapshot, [b"c", b"d"])
    kafka.offsets(names).delete_records(names.snapshot, 0, 1)
    kafka.until(lambda: kafka.start(names.snapshot) == 1, "the deletion")
    offsets = kafka.offsets(names)
    answer = offsets.ask_bounds(names.changelog, names.snapshot, 0)
    found: list[Bounds | None] = []

    def arrived() -> bool:
        found.append(answer(0.0))
        return found[-1] is not None

    kafka.until(arrived, "the answer")
    assert found[-1] == Bounds(2, 1)


def test_a_question_for_bounds_of_open_transactions_includes_them(kafka: World) -> None:
    names = kafka.names()
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(names.changelog, b"a"))
    producer.send_offsets({names.input: 1}, kafka.no_member(names))
    offsets = kafka.offsets(names)
    assert offsets.ask_bounds(names.changelog, names.snapshot, 0)(10.0) == Bounds(1, 0)


def test_a_question_for_bounds_of_a_missing_topic_fails(kafka: World) -> None:
    names = kafka.names()
    offsets = kafka.offsets(names)
    with pytest.raises(KafkaTrouble):
        offsets.ask_bounds("missing", names.snapshot, 0)(15.0)


def test_offsets_without_membership_count_while_the_group_has_no_members(kafka: World) -> None:
    names = kafka.names()
    commit_offset(kafka, names, 5)
    assert kafka.describe_group(names).members == ()
