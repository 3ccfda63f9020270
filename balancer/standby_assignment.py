"""Which member of the group stands by for which partitions: each works it out alone, and all come to the same. Pure."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

from statehold.ports import GroupView


def chosen(view: GroupView, member: str, partitions: int, copies: int) -> frozenset[int] | None:
    """The partitions whose copies `member` keeps; None while the group is moving, or does not know this member.

    A partition that nobody owns is dealt out like any other, so that its copy outlives its owner.
    """
    if view.state != "stable" or all(each.id != member for each in view.members):
        return None
    owners = {partition: each.id for each in view.members for partition in each.partitions}
    names = {each.id: each.instance or each.id for each in view.members}
    dealt = deal({p: names.get(owners.get(p, ""), "") for p in range(partitions)}, sorted(set(names.values())), copies)
    return frozenset(partition for partition, keepers in dealt.items() if names[member] in keepers)


def deal(owners: Mapping[int, str], members: Sequence[str], copies: int) -> dict[int, list[str]]:
    """Up to `copies` members for each partition, never its owner; each member about as often as the others.

    By weights that depend on partition and member alone, so that one member more or less moves few copies.
    """
    fair = -(-len(owners) * copies // max(1, len(members)))
    load: Counter[str] = Counter()
    dealt: dict[int, list[str]] = {}
    for partition, owner in sorted(owners.items()):
        others = [member for member in members if member != owner]
        others.sort(
            key=lambda member: (max(load[member] - fair, -1), zlib.crc32(f"{partition} {member}".encode()), member)
        )
        dealt[partition] = others[:copies]
        load.update(dealt[partition])
    return dealt
