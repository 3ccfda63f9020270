"""Contracts of group membership: assignments, callbacks, sessions, generations, static members."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.contracts.world import HEARTBEAT, SESSION, Member, World, poll_until, sent, settled

from statehold.errors import InstanceTaken, KafkaTrouble, TransactionAborted

COOPERATIVE: dict[str, Any] = {"protocol": "classic", "assignor": "cooperative-sticky"}
RANGE: dict[str, Any] = {"protocol": "classic", "assignor": "range"}
CONSUMER: dict[str, Any] = {"protocol": "consumer", "session_timeout": "auto", "heartbeat_interval": "auto"}
KINDS = pytest.mark.parametrize(
    "group", [COOPERATIVE, RANGE, CONSUMER], ids=["cooperative", "range", "consumer-protocol"]
)
KEEPING = pytest.mark.parametrize("group", [COOPERATIVE, CONSUMER], ids=["cooperative", "consumer-protocol"])


@KINDS
def test_the_only_member_gets_every_partition(kafka: World, group: dict[str, Any]) -> None:
    member = Member(kafka, kafka.names(3), "a", **group).join()
    settled(member, partitions=3)
    assert member.events == [("assign", (0, 1, 2))]


@KINDS
def test_two_members_share_the_partitions_evenly(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(4)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=4)
    second = Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=4)
    assert (len(first.owned), len(second.owned)) == (2, 2)


@KINDS
def test_no_partition_ever_has_two_owners(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(6)
    members: list[Member] = []
    for process in ("a", "b", "c"):
        members.append(Member(kafka, names, process, **group).join())
        poll_until(members, lambda: _disjoint(members) and _complete(members, 6), "an owner of each partition")
    settled(*members, partitions=6)
    assert [len(member.owned) for member in members] == [2, 2, 2]


def _disjoint(members: list[Member]) -> bool:
    owned = [partition for member in members for partition in member.owned]
    assert len(owned) == len(set(owned)), "a partition has two owners"
    return True


def _complete(members: list[Member], partitions: int) -> bool:
    return sum(len(member.owned) for member in members) == partitions and all(member.owned for member in members)


@KEEPING
def test_a_member_keeps_what_stays_with_it_through_a_rebalance(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(4)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=4)
    second = Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=4)
    assert first.released("revoke") == second.owned
    assert first.released("lost") == set()


def test_the_range_assignor_revokes_everything_at_each_rebalance(kafka: World) -> None:
    names = kafka.names(4)
    first = Member(kafka, names, "a", **RANGE).join()
    settled(first, partitions=4)
    second = Member(kafka, names, "b", **RANGE).join()
    settled(first, second, partitions=4)
    assert first.events[1] == ("revoke", (0, 1, 2, 3))
    assert first.owned in ({0, 1}, {2, 3})


@KEEPING
def test_the_partitions_of_a_member_that_leaves_go_to_the_others_at_once(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(4)
    first, second = Member(kafka, names, "a", **group).join(), Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=4)
    began = kafka.now()
    assert second.consumer.close(10.0)
    poll_until([first], lambda: first.owned == {0, 1, 2, 3}, "the partitions of the member that left")
    assert kafka.now() - began < SESSION
    assert first.released("lost") == set()


@KEEPING
def test_a_close_revokes_what_the_member_still_has(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    member = Member(kafka, names, "a", **group).join()
    settled(member, partitions=2)
    member.consumer.close(10.0)
    assert member.events[-1] == ("revoke", (0, 1))
    kafka.until(lambda: kafka.describe_group(names).members == (), "an empty group")


@KEEPING
def test_the_partitions_of_a_crashed_member_move_when_its_session_ends(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(4)
    first, second = Member(kafka, names, "a", **group).join(), Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=4)
    kafka.crash("b")
    began = kafka.now()
    poll_until([first], lambda: first.owned == {0, 1, 2, 3}, "the partitions of the crashed member")
    assert kafka.now() - began > SESSION - 3 * HEARTBEAT


@KEEPING
def test_a_member_whose_heartbeats_do_not_arrive_loses_its_partitions(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(4)
    first, second = Member(kafka, names, "a", **group).join(), Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=4)
    had = set(second.owned)
    kafka.silence("b")
    poll_until([first, second], lambda: second.released("lost") == had, "the loss")
    poll_until([first, second], lambda: bool(second.owned), "partitions after it joined again")
    settled(first, second, partitions=4)


@KINDS
def test_a_member_without_partitions_is_idle_and_stays_in_the_group(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(1)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=1)
    second = Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=1)
    kafka.until(lambda: kafka.describe_group(names).state == "stable", "a stable group")
    found = kafka.describe_group(names)
    assert sorted(len(member.partitions) for member in found.members) == [0, 1]


@KEEPING
def test_an_idle_member_takes_over(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(1)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=1)
    second = Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=1)
    owner, idle = (first, second) if first.owned else (second, first)
    owner.consumer.close(10.0)
    poll_until([idle], lambda: idle.owned == {0}, "the takeover")


@KINDS
def test_the_group_names_its_members_and_their_partitions(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first, second = Member(kafka, names, "a", **group).join(), Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=2)
    kafka.until(lambda: kafka.describe_group(names).state == "stable", "a stable group")
    found = kafka.describe_group(names)
    assert found.kind == ("CONSUMER" if group is CONSUMER else "CLASSIC")
    described = {member.client_id: set(member.partitions) for member in found.members}
    assert described == {"a": first.owned, "b": second.owned}
    assert {member.id for member in found.members} == {each.consumer.membership()[1] for each in (first, second)}


def test_only_the_consumer_protocol_shows_the_target_of_a_member(kafka: World) -> None:
    for group in (COOPERATIVE, CONSUMER):
        names = kafka.names(2)
        settled(Member(kafka, names, "a", **group).join(), partitions=2)
        kafka.until(lambda n=names: kafka.describe_group(n).state == "stable", "a stable group")  # type: ignore[misc]
        (member,) = kafka.describe_group(names).members
        assert member.target == ((0, 1) if group is CONSUMER else None)


def test_a_group_that_never_existed_is_no_member_of_anything(kafka: World) -> None:
    names = kafka.names()
    assert not kafka.offsets(names).is_member("nobody", names.input, 0)


@KINDS
def test_the_coordinator_knows_who_owns_a_partition_now(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first, second = Member(kafka, names, "a", **group).join(), Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=2)
    kafka.until(lambda: kafka.describe_group(names).state == "stable", "a stable group")
    offsets = kafka.offsets(names)
    member_id, (partition,) = first.consumer.membership()[1], first.owned
    assert offsets.is_member(member_id, names.input, partition)
    assert not offsets.is_member(member_id, names.input, 1 - partition)
    assert not offsets.is_member("another", names.input, partition)


@KINDS
def test_offsets_with_the_metadata_of_a_member_count(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    member = Member(kafka, names, "a", **group).join()
    settled(member, partitions=2)
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 5}, member.metadata)
    producer.commit()
    assert kafka.offsets(names).committed(names.input, 0) == 5


def _old_metadata(kafka: World, names: Any, group: dict[str, Any]) -> tuple[Member, Any]:
    """Return a member that owns partition 0 before and after a rebalance, and its metadata from before."""
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=2)
    old = first.metadata
    second = Member(kafka, names, "b", **group).join()
    settled(first, second, partitions=2)
    return (first if 0 in first.owned else second), old


@pytest.mark.parametrize("group", [COOPERATIVE, RANGE], ids=["cooperative", "range"])
def test_offsets_of_an_earlier_generation_are_rejected_as_stale(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    _, old = _old_metadata(kafka, names, group)
    producer = kafka.producer(names)
    producer.begin()
    with pytest.raises(TransactionAborted) as raised:
        producer.send_offsets({names.input: 5}, old)
    assert raised.value.stale


def test_offsets_of_an_earlier_member_epoch_are_rejected_as_stale(kafka: World) -> None:
    names = kafka.names(2)
    _, old = _old_metadata(kafka, names, CONSUMER)
    producer = kafka.producer(names)
    producer.begin()
    with pytest.raises(TransactionAborted) as raised:
        producer.send_offsets({names.input: 5}, old)
    assert raised.value.stale


@KINDS
def test_after_stale_offsets_and_an_abort_fresh_metadata_commits(kafka: World, group: dict[str, Any]) -> None:
    names, topic = kafka.names(2), kafka.topic()
    owner, old = _old_metadata(kafka, names, group)
    producer = kafka.producer(names)
    producer.begin()
    producer.send(sent(topic, b"a"))
    with suppress(TransactionAborted):
        producer.send_offsets({names.input: 5}, old)
    producer.abort()
    producer.begin()
    producer.send(sent(topic, b"b"))
    producer.send_offsets({names.input: 6}, owner.metadata)
    producer.commit()
    assert kafka.sees(topic, b"b")
    assert kafka.offsets(names).committed(names.input, 0) == 6


@KINDS
def test_offsets_of_a_member_that_has_left_are_rejected_as_stale(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=2)
    old = first.metadata
    first.consumer.close(10.0)
    second = Member(kafka, names, "b", **group).join()
    settled(second, partitions=2)
    producer = kafka.producer(names)
    producer.begin()
    with pytest.raises(TransactionAborted) as raised:
        producer.send_offsets({names.input: 5}, old)
    assert raised.value.stale


@KINDS
def test_offsets_of_a_member_whose_session_ended_are_rejected_as_stale(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", **group).join()
    settled(first, partitions=2)
    old = first.metadata
    kafka.crash("a")
    second = Member(kafka, names, "b", **group).join()
    settled(second, partitions=2)
    producer = kafka.producer(names)
    producer.begin()
    with pytest.raises(TransactionAborted) as raised:
        producer.send_offsets({names.input: 5}, old)
    assert raised.value.stale


@KINDS
def test_offsets_without_membership_count_also_while_the_group_has_members(kafka: World, group: dict[str, Any]) -> None:
    """So nothing but its own checks keeps a tool from setting the offsets of a running service."""
    names = kafka.names()
    settled(Member(kafka, names, "a", **group).join(), partitions=1)
    producer = kafka.producer(names)
    producer.begin()
    producer.send_offsets({names.input: 5}, kafka.no_member(names))
    producer.commit()
    assert kafka.offsets(names).committed(names.input, 0) == 5


def test_offsets_count_while_the_group_waits_for_a_member_that_joins(kafka: World) -> None:
    """The generation moves when all members have joined, so a drain in `on_revoke` can still commit."""
    names = kafka.names(2)
    first = Member(kafka, names, "a", **RANGE).join()
    settled(first, partitions=2)
    committed: list[int | None] = []

    def drain() -> None:
        producer = kafka.producer(names)
        producer.begin()
        producer.send_offsets({names.input: 5}, first.metadata)
        producer.commit()
        committed.append(kafka.offsets(names).committed(names.input, 0))

    first.drain = drain
    second = Member(kafka, names, "b", **RANGE).join()
    settled(first, second, partitions=2)
    assert committed[0] == 5


def test_with_the_consumer_protocol_new_partitions_of_the_input_get_owners(kafka: World) -> None:
    names = kafka.names(1)
    member = Member(kafka, names, "a", **CONSUMER).join()
    settled(member, partitions=1)
    kafka.grow(names.input, 3)
    poll_until([member], lambda: member.owned == {0, 1, 2}, "owners of the new partitions", 30)


def test_with_the_classic_protocol_new_partitions_have_no_owner_before_a_client_refreshes_its_metadata(
    kafka: World,
) -> None:
    names = kafka.names(1)
    member = Member(kafka, names, "a", **COOPERATIVE).join()
    settled(member, partitions=1)
    kafka.grow(names.input, 3)
    until = kafka.now() + 2
    poll_until([member], lambda: kafka.now() >= until, "two seconds")
    assert member.owned == {0}
    # A member that joins makes the leader assign again, with the metadata that it then has.
    second = Member(kafka, names, "b", **COOPERATIVE).join()
    settled(member, second, partitions=3)


@KEEPING
def test_a_static_member_that_stops_keeps_its_partitions_for_its_session(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", instance_id="one", **group).join()
    second = Member(kafka, names, "b", instance_id="two", **group).join()
    settled(first, second, partitions=2)
    seen, had = len(first.events), set(second.owned)
    second.consumer.close(10.0)
    kafka.pass_time(2 * HEARTBEAT)
    again = Member(kafka, names, "c", instance_id="two", **group).join()
    settled(first, again, partitions=2)
    assert again.owned == had
    assert first.events[seen:] == []


def test_a_static_member_that_leaves_gives_its_partitions_to_the_others(kafka: World) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", instance_id="one", **COOPERATIVE).join()
    second = Member(kafka, names, "b", instance_id="two", **COOPERATIVE).join()
    settled(first, second, partitions=2)
    began = kafka.now()
    second.consumer.close(10.0, leave=True)
    poll_until([first], lambda: first.owned == {0, 1}, "the partitions of the member that left")
    assert kafka.now() - began < SESSION


def test_with_the_classic_protocol_a_second_process_of_one_name_fences_the_first(kafka: World) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", instance_id="one", **COOPERATIVE).join()
    settled(first, partitions=2)
    second = Member(kafka, names, "b", instance_id="one", **COOPERATIVE).join()
    with pytest.raises((InstanceTaken, KafkaTrouble), match="FENCED_INSTANCE_ID"):
        poll_until([second, first], lambda: False, "the fence")
    settled(second, partitions=2)


def test_with_the_consumer_protocol_a_second_process_of_one_name_waits(kafka: World) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", instance_id="one", **CONSUMER).join()
    settled(first, partitions=2)
    second = Member(kafka, names, "b", instance_id="one", **CONSUMER).join()
    until = kafka.now() + 2
    poll_until([first, second], lambda: kafka.now() >= until, "two seconds")
    assert (first.owned, second.owned) == ({0, 1}, set())
    first.consumer.close(10.0)
    poll_until([second], lambda: second.owned == {0, 1}, "the name")


@KEEPING
def test_a_member_that_does_not_poll_for_too_long_loses_its_partitions(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    member = Member(kafka, names, "a", max_poll_interval=3.0, **group).join()
    settled(member, partitions=2)
    kafka.pass_time(4.0)
    poll_until([member], lambda: len(member.events) > 1, "the loss")
    assert member.events[1] == ("lost", (0, 1))
    settled(member, partitions=2)


@KEEPING
def test_another_member_gets_the_partitions_of_one_that_does_not_poll(kafka: World, group: dict[str, Any]) -> None:
    names = kafka.names(2)
    first = Member(kafka, names, "a", max_poll_interval=3.0, **group).join()
    settled(first, partitions=2)
    second = Member(kafka, names, "b", max_poll_interval=3.0, **group).join()
    poll_until([second], lambda: second.owned == {0, 1}, "the partitions of the silent member")
    assert first.owned == {0, 1}  # it does not know yet


@KEEPING
def test_a_static_member_that_comes_back_during_a_rebalance_owns_nothing(kafka: World, group: dict[str, Any]) -> None:
    """The partitions of its predecessor cannot be revoked, so every partition is assigned in that rebalance."""
    names = kafka.names(3)
    first = Member(kafka, names, "a", instance_id="one", **group).join()
    second = Member(kafka, names, "b", instance_id="two", **group).join()
    settled(first, second, partitions=3)
    first.consumer.close(10.0)
    third = Member(kafka, names, "c", instance_id="three", **group).join()
    until = kafka.now() + 2 * HEARTBEAT
    poll_until([second, third], lambda: kafka.now() >= until, "the join of the third member")
    again = Member(kafka, names, "d", instance_id="one", **group).join()
    settled(second, third, again, partitions=3)
    assert sorted([*second.owned, *third.owned, *again.owned]) == [0, 1, 2]
