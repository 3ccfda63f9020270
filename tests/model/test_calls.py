"""Durable calls of two partitions: for all small limits no partition waits without end, and each defect is found."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model.calls import DEFECTS, Model, World
from tests.model.search import Found, search

pytestmark = pytest.mark.slow


def explore(**options: Any) -> Found:
    model = Model(**options)
    return search(World(), model.following, model.check)


LIMITS = [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize(("pending", "in_flight"), LIMITS)
@pytest.mark.parametrize("in_order", [False, True])
def test_no_limits_let_a_partition_wait_without_end(pending: int, in_flight: int, in_order: bool) -> None:
    found = explore(pending=pending, in_flight=in_flight, in_order=in_order, further=0)
    assert (found.broken, found.whole) == ("", True), found.path
    assert found.states > 2_000


@pytest.mark.parametrize(("pending", "in_flight"), LIMITS)
def test_nor_if_answers_make_further_calls(pending: int, in_flight: int) -> None:
    found = explore(pending=pending, in_flight=in_flight, in_order=True, further=1)
    assert (found.broken, found.whole) == ("", True), found.path
    assert found.states > 7_000


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_planted_defect_is_found(defect: str) -> None:
    found = [
        explore(pending=1, in_flight=1, in_order=True, further=1, defect=defect),
        explore(pending=2, in_flight=1, in_order=True, further=1, defect=defect),
    ]
    assert any(each.broken for each in found), "no state breaks a rule"
