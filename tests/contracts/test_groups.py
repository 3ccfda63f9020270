"""Contracts of group membership: assignments, callbacks, sessions, generations, static members."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.contracts.world import HEARTBEAT, SESSION, Group, Member, World, poll_until

from statehold.errors import InstanceTaken, KafkaTrouble, TransactionAborted

COOPERATIVE: dict[str, Any] = {"protocol": "classic", "assignor": "cooperative-sticky"}
RANGE: dict[str, Any] = {"protocol": "classic", "assignor": "range"}
CONSUMER: dict[str, Any] = {"protocol": "consumer", "session_timeout": "auto", "heartbeat_interval": "auto"}
KINDS = {"cooperative": COOPERATIVE, "range": RANGE, "consumer-protocol": CONSUMER}


@pytest.fixture
def group(request: pytest.FixtureRequest, kafka: World) -> Group:
    partitions, kind = request.param
    return Group(kafka, partitions, KINDS[kind])


def kinds(partitions: int, *names: str) -> pytest.MarkDecorator:
    """Run a contract on a group of each of these kinds with this number of partitions."""
    return pytest.mark.parametrize("group", [(partitions, name) for name in names], ids=names, indirect=True)


def every_kind(partitions: int) -> pytest.MarkDecorator:
    return kinds(partitions, *KINDS)


def keeping(partitions: int) -> pytest.MarkDecorator:
    """Run a contract on the kinds whose members keep partitions through a rebalance."""
    return kinds(partitions, "cooperative", "consumer-protocol")


@every_kind(3)
def test_the_only_member_gets_every_partition(group: Group) -> None:
    assert group.one().events == [("assign", (0, 1, 2))]


@every_kind(4)
def test_two_members_share_the_partitions_evenly(group: Group) -> None:
    first, second = group.in_turn()
    assert (len(first.owned), len(second.owned)) == (2, 2)


@every_kind(6)
def test_no_partition_ever_has_two_owners(group: Group) -> None:
    members: list[Member] = []

    def complete() -> bool:
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        return len(owned) == 6 and all(member.owned for member in members)

    for process in ("a", "b", "c"):
        members.append(group.join(process))
        poll_until(members, complete, "an owner of each partition")
    group.settle(*members)
    assert [len(member.owned) for member in members] == [2, 2, 2]


@keeping(4)
def test_a_member_keeps_what_stays_with_it_through_a_rebalance(group: Group) -> None:
    first, second = group.in_turn()
    assert first.released("revoke") == second.owned
    assert first.released("lost") == set()


def test_the_range_assignor_revokes_everything_at_each_rebalance(kafka: World) -> None:
    group = Group(kafka, 4, RANGE)
    first, _ = group.in_turn()
    assert first.events[1] == ("revoke", (0, 1, 2, 3))
    assert first.owned in ({0, 1}, {2, 3})


@keeping(4)
def test_the_partitions_of_a_member_that_leaves_go_to_the_others_at_once(kafka: World, group: Group) -> None:
    first, second = group.together()
    began = kafka.now()
    assert second.consumer.close(10.0)
    poll_until([first], lambda: first.owned == {0, 1, 2, 3}, "the partitions of the member that left")
    assert kafka.now() - began < SESSION
    assert first.released("lost") == set()


@keeping(2)
def test_a_close_revokes_what_the_member_still_has(kafka: World, group: Group) -> None:
    member = group.one()
    member.consumer.close(10.0)
    assert member.events[-1] == ("revoke", (0, 1))
    kafka.until(lambda: kafka.describe_group(group.names).members == (), "an empty group")


@keeping(4)
def test_the_partitions_of_a_crashed_member_move_when_its_session_ends(kafka: World, group: Group) -> None:
    first, _ = group.together()
    kafka.crash("b")
    began = kafka.now()
    poll_until([first], lambda: first.owned == {0, 1, 2, 3}, "the partitions of the crashed member")
    assert kafka.now() - began > SESSION - 3 * HEARTBEAT


@keeping(4)
def test_a_member_whose_heartbeats_do_not_arrive_loses_its_partitions(kafka: World, group: Group) -> None:
    first, second = group.together()
    had = set(second.owned)
    kafka.silence("b")
    poll_until([first, second], lambda: second.released("lost") == had, "the loss")
    poll_until([first, second], lambda: bool(second.owned), "partitions after it joined again")
    group.settle(first, second)


@every_kind(1)
def test_a_member_without_partitions_is_idle_and_stays_in_the_group(group: Group) -> None:
    group.in_turn()
    assert sorted(len(member.partitions) for member in group.described().members) == [0, 1]


@keeping(1)
def test_an_idle_member_takes_over(group: Group) -> None:
    first, second = group.in_turn()
    owner, idle = (first, second) if first.owned else (second, first)
    owner.consumer.close(10.0)
    poll_until([idle], lambda: idle.owned == {0}, "the takeover")


@every_kind(2)
def test_the_group_names_its_members_and_their_partitions_and_with_the_consumer_protocol_their_targets(
    group: Group,
) -> None:
    members, found = group.together(), group.described()
    assert found.kind == ("CONSUMER" if group.kind is CONSUMER else "CLASSIC")
    described = {(each.client_id, each.id, each.partitions, each.target) for each in found.members}
    owned = {each: tuple(each.owned) for each in members}
    target = owned if group.kind is CONSUMER else dict.fromkeys(members)
    assert described == {(each.process, each.consumer.membership()[1], owned[each], target[each]) for each in members}


def test_a_group_that_never_existed_is_no_member_of_anything(kafka: World) -> None:
    names = kafka.names()
    assert not kafka.offsets(names).is_member("nobody", names.input, 0)


@every_kind(2)
def test_the_coordinator_knows_who_owns_a_partition_now(kafka: World, group: Group) -> None:
    first, _ = group.together()
    group.described()
    offsets, input_topic = kafka.offsets(group.names), group.names.input
    member_id, (partition,) = first.consumer.membership()[1], first.owned
    assert offsets.is_member(member_id, input_topic, partition)
    assert not offsets.is_member(member_id, input_topic, 1 - partition)
    assert not offsets.is_member("another", input_topic, partition)


@every_kind(2)
def test_offsets_with_the_metadata_of_a_member_count(group: Group) -> None:
    member = group.one()
    producer = group.writer().begin().send_offset(5, member.metadata)
    producer.commit()
    assert producer.committed() == 5


def rejected_as_stale(group: Group, metadata: Any) -> None:
    producer = group.writer().begin()
    with pytest.raises(TransactionAborted) as raised:
        producer.send_offset(5, metadata)
    assert raised.value.stale


def old_metadata(group: Group) -> tuple[Member, Any]:
    """Return the owner of partition 0 after a rebalance, and the metadata of its first owner from before."""
    first = group.one()
    old = first.metadata
    second = group.join("b")
    group.settle(first, second)
    return (first if 0 in first.owned else second), old


@every_kind(2)
def test_offsets_of_an_earlier_generation_or_member_epoch_are_rejected_as_stale(group: Group) -> None:
    rejected_as_stale(group, old_metadata(group)[1])


@every_kind(2)
def test_after_stale_offsets_and_an_abort_fresh_metadata_commits(group: Group) -> None:
    owner, old = old_metadata(group)
    producer = group.writer().begin().send(b"a")
    with suppress(TransactionAborted):
        producer.send_offset(5, old)
    producer.abort()
    producer.begin().send(b"b").send_offset(6, owner.metadata).commit()
    assert producer.sees(b"b")
    assert producer.committed() == 6


@pytest.mark.parametrize("leaves", [True, False], ids=["has left", "session ended"])
@every_kind(2)
def test_offsets_of_a_member_that_is_gone_are_rejected_as_stale(kafka: World, group: Group, leaves: bool) -> None:
    first = group.one()
    old = first.metadata
    if leaves:
        first.consumer.close(10.0)
    else:
        kafka.crash("a")
    group.one("b")
    rejected_as_stale(group, old)


@every_kind(1)
def test_offsets_without_membership_count_also_while_the_group_has_members(group: Group) -> None:
    """So nothing but its own checks keeps a tool from setting the offsets of a running service."""
    group.one()
    producer = group.writer().begin().send_offset(5)
    producer.commit()
    assert producer.committed() == 5


def test_offsets_count_while_the_group_waits_for_a_member_that_joins(kafka: World) -> None:
    """The generation moves when all members have joined, so a drain in `on_revoke` can still commit."""
    group = Group(kafka, 2, RANGE)
    first, topic = group.one(), kafka.topic()
    committed: list[int | None] = []

    def drain() -> None:
        producer = kafka.writer(group.names, topic).begin().send_offset(5, first.metadata)
        producer.commit()
        committed.append(producer.committed())

    first.drain = drain
    group.settle(first, group.join("b"))
    assert committed[0] == 5


def test_with_the_consumer_protocol_new_partitions_of_the_input_get_owners(kafka: World) -> None:
    group = Group(kafka, 1, CONSUMER)
    member = group.one()
    kafka.grow(group.names.input, 3)
    poll_until([member], lambda: member.owned == {0, 1, 2}, "owners of the new partitions", 30)


def poll_for(seconds: float, *members: Member) -> None:
    until = members[0].world.now() + seconds
    poll_until(members, lambda: members[0].world.now() >= until, f"{seconds:g} s")


def test_with_the_classic_protocol_new_partitions_have_no_owner_before_a_client_refreshes_its_metadata(
    kafka: World,
) -> None:
    group = Group(kafka, 1, COOPERATIVE)
    member = group.one()
    kafka.grow(group.names.input, 3)
    poll_for(2, member)
    assert member.owned == {0}
    # A member that joins makes the leader assign again, with the metadata that it then has.
    group.partitions = 3
    group.settle(member, group.join("b"))


@keeping(2)
def test_a_static_member_that_stops_keeps_its_partitions_for_its_session(kafka: World, group: Group) -> None:
    first, second = group.together("one", "two")
    seen, had = len(first.events), set(second.owned)
    second.consumer.close(10.0)
    kafka.pass_time(2 * HEARTBEAT)
    again = group.join("c", instance_id="two")
    group.settle(first, again)
    assert again.owned == had
    assert first.events[seen:] == []


def test_a_static_member_that_leaves_gives_its_partitions_to_the_others(kafka: World) -> None:
    first, second = Group(kafka, 2, COOPERATIVE).together("one", "two")
    began = kafka.now()
    second.consumer.close(10.0, leave=True)
    poll_until([first], lambda: first.owned == {0, 1}, "the partitions of the member that left")
    assert kafka.now() - began < SESSION


def test_with_the_classic_protocol_a_second_process_of_one_name_fences_the_first(kafka: World) -> None:
    group = Group(kafka, 2, COOPERATIVE)
    first, second = group.one(instance_id="one"), group.join("b", instance_id="one")
    with pytest.raises((InstanceTaken, KafkaTrouble), match="FENCED_INSTANCE_ID"):
        poll_until([second, first], lambda: False, "the fence")
    group.settle(second)


def test_with_the_consumer_protocol_a_second_process_of_one_name_waits(kafka: World) -> None:
    group = Group(kafka, 2, CONSUMER)
    first, second = group.one(instance_id="one"), group.join("b", instance_id="one")
    poll_for(2, first, second)
    assert (first.owned, second.owned) == ({0, 1}, set())
    first.consumer.close(10.0)
    poll_until([second], lambda: second.owned == {0, 1}, "the name")


@keeping(2)
def test_a_member_that_does_not_poll_for_too_long_loses_its_partitions(kafka: World, group: Group) -> None:
    member = group.one(max_poll_interval=3.0)
    kafka.pass_time(4.0)
    poll_until([member], lambda: len(member.events) > 1, "the loss")
    assert member.events[1] == ("lost", (0, 1))
    group.settle(member)


@keeping(2)
def test_another_member_gets_the_partitions_of_one_that_does_not_poll(group: Group) -> None:
    first, second = group.one(max_poll_interval=3.0), group.join("b", max_poll_interval=3.0)
    poll_until([second], lambda: second.owned == {0, 1}, "the partitions of the silent member")
    assert first.owned == {0, 1}  # it does not know yet


@keeping(3)
def test_a_static_member_that_comes_back_during_a_rebalance_owns_nothing(group: Group) -> None:
    """The partitions of its predecessor cannot be revoked, so every partition is assigned in that rebalance."""
    first, second = group.together("one", "two")
    first.consumer.close(10.0)
    third = group.join("c", instance_id="three")
    poll_for(2 * HEARTBEAT, second, third)
    again = group.join("d", instance_id="one")
    group.settle(second, third, again)
    assert sorted([*second.owned, *third.owned, *again.owned]) == [0, 1, 2]
