"""The rows of a join by key, side and time, against a plain set."""

from __future__ import annotations

import random

import pytest

from statehold.api.joins import Row
from statehold.state.kinds.join_rows import JoinRows


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_found_by_time_after_any_additions_and_removals(seed: int) -> None:
    numbers, rows, there = random.Random(seed), JoinRows[str](), set[Row[str]]()
    for _ in range(300):
        row = (numbers.choice("ab"), numbers.choice(["left", "right"]), numbers.randrange(40), numbers.randrange(3))
        assert rows.add(row) == (row not in there)
        there.add(row)
        if numbers.random() < 0.2:
            oldest = sorted(there)[: numbers.randrange(10)]
            gone = oldest if numbers.random() < 0.5 else numbers.sample(sorted(there), len(there) // 3)
            numbers.shuffle(gone)
            if numbers.random() < 0.5:
                rows.discard([*gone, ("z", "left", 1, 0)])
            else:
                rows.leave(gone)
            there -= set(gone)
        key, side, first = numbers.choice("abz"), numbers.choice(["left", "right"]), numbers.randrange(40)
        last = first + numbers.randrange(20)
        wanted = sorted(each for each in there if each[:2] == (key, side) and first <= each[2] <= last)
        assert list(rows.between(key, side, first, last)) == wanted
