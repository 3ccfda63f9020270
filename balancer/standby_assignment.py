"""Assigns standby replicas to members: deterministic, so every member computes the same result. Pure."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

from statehold.ports import ConsumerGroup


def standby_partitions(view: ConsumerGroup, member: str, partitions: int, copies: int) -> frozenset[int] | None:
    """Return the partitions whose standby replicas `member` keeps.

    None while the group rebalances, or if it does not contain `member`. A partition without an owner gets replicas
    too, so that its state outlives its owner.
    """
    if view.state != "stable" or all(each.id != member for each in view.members):
        return None
    owners = {partition: each.id for each in view.members for partition in each.partitions}
    names = {each.id: each.static_id or each.id for each in view.members}
    replicas = assign_replicas(
        {p: names.get(owners.get(p, ""), "") for p in range(partitions)}, sorted(set(names.values())), copies
    )
    return frozenset(partition for partition, keepers in replicas.items() if names[member] in keepers)


def assign_replicas(owners: Mapping[int, str], members: Sequence[str], copies: int) -> dict[int, list[str]]:
    """Return up to `copies` members for each partition, never its owner, balanced over the members.

    The weights depend on partition and member alone. One member more or less therefore moves few replicas.
    """
    fair = -(-len(owners) * copies // max(1, len(members)))
    load: Counter[str] = Counter()
    replicas: dict[int, list[str]] = {}
    for partition, owner in sorted(owners.items()):
        others = [member for member in members if member != owner]
        others.sort(
            key=lambda member: (max(load[member] - fair, -1), zlib.crc32(f"{partition} {member}".encode()), member)
        )
        replicas[partition] = others[:copies]
        load.update(replicas[partition])
    return replicas
