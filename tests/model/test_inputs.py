"""Two inputs of one partition: every order of events up to a bound, and every planted defect is found."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model.inputs import DEFECTS, TIMES, Model, World
from tests.model.search import Found, search

pytestmark = pytest.mark.slow

ALL = (len(TIMES[0]), len(TIMES[1]))


def explore(world: World, check: str = "check", **options: Any) -> Found:
    model = Model(**options)
    return search(world, model.following, getattr(model, check))


#: some seconds each; the larger ones, of some hundred thousand states, run in script/test --long
GROWING = [pytest.param((1, 2), id="one"), pytest.param((1, 1), id="both", marks=pytest.mark.long)]


@pytest.mark.parametrize(
    ("order", "deltas"), [("time", 0), ("time", 2), pytest.param("arrival", 0, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("ends", GROWING)
def test_a_replay_repeats_the_order_of_live_while_inputs_grow(ends: tuple[int, int], order: str, deltas: int) -> None:
    found = explore(World(ends=ends, idles=1), order=order, deltas=deltas)
    assert (found.broken, found.whole) == ("", True), found.path
    assert found.states > 3_000


@pytest.mark.parametrize("takeovers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_inputs_that_are_complete_are_merged_by_time(takeovers: int) -> None:
    found = explore(World(ends=ALL, takeovers=takeovers), "check_merge", order="time", deltas=0)
    assert (found.broken, found.whole) == ("", True), found.path


def test_deleted_records_stop_the_partition() -> None:
    found = explore(World(ends=ALL, deletions=2), order="time", deltas=2)
    assert (found.broken, found.whole) == ("", True), found.path


def test_a_restore_waits_for_no_empty_input() -> None:
    found = explore(World(ends=(0, 1), rollbacks=0), "check_progress", order="time", deltas=1)
    assert (found.broken, found.whole) == ("", True), found.path


#: where a defect shows: what differs from the first of the tests above
SHOWS: dict[str, tuple[World, str, dict[str, Any]]] = {
    "an input without a known record is skipped": (World(ends=ALL), "check_merge", {}),
    "ends are not read at the start": (World(ends=ALL), "check_merge", {}),
    "a tie is broken by chance": (World(ends=ALL), "check_merge", {}),
    "deleted records are skipped": (World(ends=ALL, deletions=2), "check", {}),
    "a restore waits for a record of each input": (World(ends=(0, 1)), "check_progress", {}),
    "fence after reading the last commit record": (World(ends=ALL, takeovers=2), "check", {"deltas": 1}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_planted_defect_is_found(defect: str) -> None:
    world, check, options = SHOWS.get(defect, (World(ends=(1, 1), idles=1), "check", {}))
    found = explore(world, check, **{"order": "time", "deltas": 0, "defect": defect} | options)
    assert found.broken, "no state breaks a rule"
