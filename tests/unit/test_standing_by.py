"""Which member stands by for which partitions."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from statehold.balancer.standby_assignment import chosen, deal
from statehold.ports import GroupView, MemberView

MEMBERS = st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, min_size=1, max_size=6)


@given(members=MEMBERS, partitions=st.integers(1, 60), copies=st.integers(1, 4), seed=st.randoms(use_true_random=False))
def test_never_the_owner_as_many_as_there_can_be_and_evenly(
    members: list[str], partitions: int, copies: int, seed: object
) -> None:
    owners = {p: members[p % len(members)] for p in range(partitions)}
    dealt = deal(owners, sorted(members), copies)
    for partition, keepers in dealt.items():
        assert owners[partition] not in keepers
        assert len(set(keepers)) == len(keepers) == min(copies, len(members) - 1)
    load = Counter(keeper for keepers in dealt.values() for keeper in keepers)
    fair = partitions * min(copies, len(members) - 1) / max(1, len(members))
    assert all(load[member] <= fair + copies + 2 for member in members)


def test_all_members_together_keep_exactly_what_is_wanted() -> None:
    view = group({"a": (0, 1, 2), "b": (3, 4), "c": ()})
    kept = [chosen(view, member, 6, 2) for member in "abc"]  # partition 5 has no owner
    counted = Counter(partition for each in kept if each is not None for partition in each)
    assert counted == dict.fromkeys(range(6), 2)
    assert kept[0] is not None
    assert not kept[0] & {0, 1, 2}


def test_a_moving_group_and_a_stranger_change_nothing() -> None:
    assert chosen(group({"a": (0,), "b": ()}, state="preparing rebalancing"), "a", 1, 1) is None
    assert chosen(group({"a": (0,)}), "z", 1, 1) is None


def test_one_member_less_moves_few_copies() -> None:
    members = [f"m{i}" for i in range(8)]
    owners = {p: members[p % 7] for p in range(70)}
    before, after = deal(owners, members, 1), deal(owners, members[:-1], 1)
    kept = sum(before[p] == after[p] for p in owners)
    assert kept > 35


def group(held: dict[str, tuple[int, ...]], state: str = "stable") -> GroupView:
    return GroupView(state, tuple(MemberView(name, name, "host", "", parts) for name, parts in held.items()))
