"""Describes consumer groups. No other module asks the brokers for the members of a group."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberAssignment, MemberDescription

from statehold.errors import KafkaTrouble
from statehold.kafka.admin.futures import NO_TIMEOUT, RESULT_WAIT, result
from statehold.kafka.common.error_actions import COORDINATOR_MOVES, code_of
from statehold.kafka.common.retry import call_patiently
from statehold.ports import ConsumerGroup, GroupMember

#: longest pause between two questions while the coordinator moves: a move mostly takes less than a second
_COORDINATOR_PAUSE: Final = 0.5


def ask_groups(
    client: AdminClient, groups: Sequence[str], *, rights: bool = False
) -> dict[str, Future[ConsumerGroupDescription]]:
    """Ask for groups without waiting. Keep `client` referenced until the answers are there (pitfall P27).

    The caller bounds the wait, because a timeout inside librdkafka can end the process (`NO_TIMEOUT`). With `rights`
    each answer names the operations that this principal may do on the group.
    """
    found: dict[str, Future[ConsumerGroupDescription]] = client.describe_consumer_groups(
        list(groups), include_authorized_operations=rights, request_timeout=NO_TIMEOUT
    )
    return found


def describe_group(
    client: AdminClient, group: str, topic: str = "", *, seconds: float = RESULT_WAIT, rights: bool = False
) -> ConsumerGroup:
    """Ask once and wait for `seconds` at most; members list their partitions of `topic`.

    :raises KafkaTrouble: the coordinator does not answer, or refuses.
    """
    return consumer_group(result(ask_groups(client, [group], rights=rights)[group], seconds=seconds), topic)


def find_group(
    client: AdminClient, group: str, topic: str = "", *, patience: float, rights: bool = False
) -> ConsumerGroup:
    """Ask until the coordinator is found, for `patience` seconds. A group that does not exist is "dead" and empty.

    :raises KafkaTrouble: the coordinator does not answer, or refuses.
    """
    try:
        return call_patiently(
            lambda: describe_group(client, group, topic, rights=rights),
            patience,
            again=lambda error: code_of(error) in COORDINATOR_MOVES,
            longest=_COORDINATOR_PAUSE,
        )
    except KafkaTrouble as error:
        if code_of(error) == KafkaError.GROUP_ID_NOT_FOUND:
            return ConsumerGroup("dead", ())
        raise


def consumer_group(found: ConsumerGroupDescription, topic: str) -> ConsumerGroup:
    """Return the answer as a value; members list their partitions of `topic`."""
    kind = getattr(found, "type", None)
    return ConsumerGroup(
        state=found.state.name.lower().replace("_", " "),
        members=tuple(_member(each, topic) for each in found.members),
        kind=kind.name if kind is not None else "",
        assignor=found.partition_assignor or "",
        allowed=operations(found.authorized_operations),
    )


def operations(found: Any) -> frozenset[str]:
    """Return the names of authorized operations, in capitals."""
    return frozenset(each.name for each in found or ())


def _member(member: MemberDescription, topic: str) -> GroupMember:
    target: MemberAssignment | None = member.target_assignment
    return GroupMember(
        member.member_id,
        member.client_id or "",
        (member.host or "").lstrip("/"),
        member.group_instance_id or "",
        _partitions(member.assignment, topic),
        None if target is None else _partitions(target, topic),
    )


def _partitions(assignment: MemberAssignment | None, topic: str) -> tuple[int, ...]:
    """Return the topic's partitions, ascending; a member that is joining has no assignment."""
    assigned = assignment.topic_partitions if assignment is not None else ()
    return tuple(sorted(place.partition for place in assigned if place.topic == topic))
