"""How a group divides partitions among its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def spread(partitions: Sequence[int], owned: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Give each member its fair share, and as many of its own partitions as fit: cooperative-sticky and uniform.

    `owned`: member id -> partitions that it has now.
    """
    members = sorted(owned)
    share, more = divmod(len(partitions), len(members))
    free, taken = set(partitions), dict[str, list[int]]()
    # Members that own the most get the larger shares, so that as few partitions as possible move.
    for index, member in enumerate(sorted(members, key=lambda m: (-len(owned[m]), m))):
        room = share + (index < more)
        taken[member] = [p for p in sorted(owned[member]) if p in free][:room]
        free -= set(taken[member])
    left = sorted(free)
    for index, member in enumerate(sorted(members, key=lambda m: (-len(owned[m]), m))):
        room = share + (index < more) - len(taken[member])
        taken[member] = sorted(taken[member] + left[:room])
        left = left[room:]
    return taken


def ranges(partitions: Sequence[int], members: Sequence[str]) -> dict[str, list[int]]:
    """Give each member a range of consecutive partitions, whatever it had."""
    share, more = divmod(len(partitions), len(members))
    given, at = {}, 0
    for index, member in enumerate(sorted(members)):
        size = share + (index < more)
        given[member] = list(partitions[at : at + size])
        at += size
    return given


def without_moving(target: Mapping[str, Sequence[int]], owned: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Leave out what another member still owns: the first of two cooperative rebalances."""
    owner = {partition: member for member, partitions in owned.items() for partition in partitions}
    return {member: [p for p in partitions if owner.get(p, member) == member] for member, partitions in target.items()}
