"""The consumer group as its coordinator describes it."""

from __future__ import annotations

from typing import Any

from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import NO_TIMEOUT, result
from statehold.ports import GroupView, MemberView

_ATTEMPT = 3.0


def group_view(admin: Admin, group: str, topic: str) -> GroupView:
    """Who is in the group now, and what each holds. Blocks for seconds at most.

    :raises KafkaTrouble: nobody answers.
    """
    # The wait is ours: see `Admin.is_member`.
    asked = admin.client.describe_consumer_groups([group], request_timeout=NO_TIMEOUT)[group]
    found: Any = result(asked, seconds=_ATTEMPT)
    return GroupView(
        found.state.name.lower().replace("_", " "),
        tuple(
            MemberView(
                member.member_id,
                member.client_id,
                member.host.lstrip("/"),
                member.group_instance_id or "",
                tuple(
                    sorted(
                        place.partition
                        for place in (member.assignment.topic_partitions if member.assignment else ())
                        if place.topic == topic
                    )
                ),
            )
            for member in found.members
        ),
    )
