"""The index of due times, against a sorted list."""

from __future__ import annotations

import math
import random

import pytest

from statehold.state.kinds.due_index import DueIndex


@pytest.mark.parametrize("seed", range(20))
def test_keys_come_by_due_time_and_then_by_key_whatever_order_they_came_in(seed: int) -> None:
    numbers = random.Random(seed)
    in_order = [(at, f"in-order-{at}") for at in range(50)]
    others = [(numbers.randrange(50), f"other-{n}") for n in range(seed * 5)]
    entries = in_order + others
    if seed % 2:
        numbers.shuffle(entries)
    index, due = DueIndex[str](entries[: seed % 7]), {key: when for when, key in entries}
    for when, key in entries[seed % 7 :]:
        index.push(when, key)
    assert index.earliest == min(due.values())
    taken = list(iter(lambda: index.take(30, due.get), None))
    assert taken == [key for when, key in sorted(entries) if when <= 30]
    index.rollback()
    again = list(iter(lambda: index.pop(1_000), None))
    assert again == [key for _, key in sorted(entries)]


def test_a_postponed_key_comes_at_its_new_time_and_a_deleted_one_does_not_come() -> None:
    index, due = DueIndex[str](), {"a": 1, "b": 2, "c": 3}
    for key, when in due.items():
        index.push(when, key)
    due["a"] = 4
    del due["b"]
    assert index.has_due(2, due.get) is False
    assert [index.take(9, due.get) for _ in range(3)] == ["c", "a", None]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_rolled_back_a_key_is_due_only_if_one_is(seed: int) -> None:
    """Of keys that are added, postponed, deleted and taken, with commits and rollbacks between."""
    numbers = random.Random(seed)
    index, due, committed = DueIndex[str](), dict[str, int](), dict[str, int]()
    frozen: dict[str, int] | None = None
    for _ in range(400):
        key, now = f"key-{numbers.randrange(15)}", numbers.randrange(60)
        match numbers.randrange(8):
            case 0 | 1 | 2:
                when = numbers.randrange(60)
                if when < due.get(key, 60):
                    index.push(when, key)
                due[key] = when
            case 3:
                due.pop(key, None)
            case 4:
                rows = sorted((when, each) for each, when in due.items() if when <= now)
                taken = index.take(now, due.get)
                assert taken == (rows[0][1] if rows else None)
                due.pop(taken or "", None)
            case 5 if frozen is None:
                index.freeze()
                frozen = dict(due)
            case 6 if frozen is not None:
                index.commit()
                committed, frozen = frozen, None
            case 7:
                index.rollback()
                due, frozen = dict(committed), None
        assert index.has_due(now, due.get) == any(when <= now for when in due.values())
        assert index.earliest <= min(due.values(), default=math.inf)
