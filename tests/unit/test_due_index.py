"""The index of due times, against a sorted list."""

from __future__ import annotations

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
    assert index.has_due(2, due.get, is_open=False) is False
    assert [index.take(9, due.get) for _ in range(3)] == ["c", "a", None]
