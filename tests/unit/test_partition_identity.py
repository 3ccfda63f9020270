"""What a mark and a full must agree with: service, partition, their number, and the identity of the topics."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.snapshot_records import NAMES, commit_record, manifest

from statehold.common.names import Names
from statehold.errors import DamagedIncrement, PartitionCountChanged, TopicReplaced, UsageError
from statehold.snapshot.format.partition_identity import Place

IDS = {"input": "1", "service.input.changelog": "2", "service.input.snapshot": "3"}


def test_a_commit_record_of_this_place_is_accepted() -> None:
    Place(NAMES, 0, 4, IDS).check(commit_record(3, topic_ids=IDS))
    Place(NAMES, 0, 4, IDS).check(commit_record(3))  # an older writer knew no ids


def test_another_namespace_or_partition_is_rejected() -> None:
    staging = Names("service", "input", "staging.")
    for place in (Place(staging, 0, 4, IDS), Place(NAMES, 1, 4, IDS)):
        with pytest.raises(DamagedIncrement, match=r"belongs to service 'service' partition 0, not to"):
            place.check(commit_record(3))


def test_a_commit_record_without_a_position_of_the_input_is_rejected() -> None:
    with pytest.raises(DamagedIncrement, match="names no position of input"):
        Place(NAMES, 0, 4, IDS).check(commit_record(3, positions={"other": 1}))


def test_another_number_of_partitions_is_rejected() -> None:
    with pytest.raises(PartitionCountChanged, match="built with 4 partitions, the topic has 8 now") as failure:
        Place(NAMES, 0, 8, IDS).check(commit_record(3))
    assert (failure.value.topic, failure.value.partition, failure.value.position) == ("input", 0, 30)


@pytest.mark.parametrize("topic", IDS)
def test_a_recreated_topic_is_rejected(topic: str) -> None:
    with pytest.raises(TopicReplaced, match=f"topic {topic} was deleted and created again"):
        Place(NAMES, 0, 4, IDS | {topic: "other"}).check(commit_record(3, topic_ids=IDS))


NEWEST = commit_record(9, last_delta=8, positions={"input": 90})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"service": "another"}, "it belongs to 'another' partition 0 of 4"),
        ({"partition": 1}, "it belongs to 'service' partition 1 of 4"),
        ({"partitions": 8}, "it belongs to 'service' partition 0 of 8"),
        ({"lineage": "m"}, "its state generation is m, that of the last commit record l"),
        ({"inputs": ("input", "prices")}, "not those of input"),
        ({"positions": {"prices": 90}}, "not those of input"),
        ({"first": 10, "through": 10}, "it goes through transaction 10, the last commit record is 9"),
        ({"first": 7, "through": 9}, "it needs a delta at or after transaction 9, the newest is 8"),
        ({"first": 7, "through": 8}, ""),
    ],
)
def test_a_full_snapshot_is_a_base_only_for_a_commit_record_that_it_fits(changes: dict[str, Any], why: str) -> None:
    found = Place(NAMES, 0, 4, IDS).refuses(msgspec.structs.replace(manifest(commit_record(8)), **changes), NEWEST)
    assert why in found
    assert bool(found) is bool(why)


def test_names_are_those_of_the_documentation() -> None:
    names = Names("clearing", "trades", "staging.")
    assert (names.group, names.changelog, names.snapshot, names.transactional_id(7)) == (
        "staging.clearing",
        "staging.clearing.trades.changelog",
        "staging.clearing.trades.snapshot",
        "staging.clearing.trades.7",
    )


def test_each_delay_has_a_topic_of_its_own_with_a_legal_name() -> None:
    topics = [NAMES.retry(delay) for delay in (0.5, 60, 600.0, 100_000.1, 100_000.2, 30 * 86_400)]
    assert [topic.removeprefix("service.input.retry.") for topic in topics] == [
        *("0.5", "60", "600", "100000.1", "100000.2", "2592000")
    ]
    assert all(map(NAMES.is_for_retries, topics))


@pytest.mark.parametrize(("service", "topic"), [("", "in"), ("a b", "in"), ("a", ""), ("a", "in/out"), ("a\n", "in")])
def test_illegal_names_are_rejected(service: str, topic: str) -> None:
    with pytest.raises(UsageError, match="use letters, digits"):
        Names(service, topic)
