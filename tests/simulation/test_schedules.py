"""Random schedules of faults, crashes and rebalances: the outcome is what a recomputation says."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.simulation.scenarios import SCENARIOS, called, scenario_of

from statehold.errors import UsageError
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import replay_line, shrink, timeline
from statehold.testing.simulation.simulation import RunReport, run

#: schedules of one test
BLOCK = 100
#: blocks of the fast tier, of the default one, and of the long tests
FAST, DEFAULT, ALL = 4, 8, 50


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    """The runs leave cycles, and a restore makes the collector ignore them."""
    yield
    gc.unfreeze()
    gc.collect()


def run_block(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        report = run(scenario_of(seed), Schedule.random(seed))
        if report.violation is not None:
            pytest.fail(f"seed {seed}, {report.scenario.name}, shrunk:\n{timeline(shrink(report))}", pytrace=False)
        if seed % 50 == 49:
            gc.unfreeze()
            gc.collect()


@pytest.mark.parametrize("block", range(FAST))
def test_schedules(block: int) -> None:
    run_block(block)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [*range(FAST, DEFAULT), *(pytest.param(block, marks=pytest.mark.long) for block in range(DEFAULT, ALL))]
)
def test_more_schedules(block: int) -> None:
    run_block(block)


def named(name: str) -> int:
    return next(index for index, each in enumerate(SCENARIOS) if each.name == name)


def trace(report: RunReport) -> list[object]:
    return [report.steps, report.seconds, repr(report.violation), *report.observer.timeline]


@pytest.mark.parametrize("seed", [4, 5, 6, 9])
def test_a_schedule_repeats_exactly(seed: int) -> None:
    scenario = SCENARIOS[seed]
    first = run(scenario, Schedule.random(seed))
    assert trace(run(scenario, Schedule.random(seed))) == trace(first)
    assert trace(run(scenario, Schedule.listed(first.actions, first.schedule.order))) == trace(first)


def test_a_failure_shrinks_to_the_action_that_causes_it() -> None:
    """Planted in the oracle: it fails whenever a process was killed."""
    report = next(
        found
        for seed in range(100)
        if len((found := run(SCENARIOS[0], Schedule.random(seed))).taken) >= 6
        and any(each.action.kind == "kill" for each in found.taken)
    )
    shrunk = shrink(report, lambda other: any(each.action.kind == "kill" for each in other.taken))
    assert [each.action.kind for each in shrunk.taken] == ["kill"]
    assert replay_line(shrunk).startswith("Schedule.listed({")
    assert "starts" in timeline(shrunk)


def test_a_run_that_passed_has_no_failure_to_shrink() -> None:
    report = run(SCENARIOS[0], Schedule.listed({}))
    with pytest.raises(UsageError, match="the run has passed"):
        shrink(report)


def test_effects_of_the_last_run_do_not_count_for_the_next() -> None:
    for _ in range(2):
        report = run(SCENARIOS[named("everything")], Schedule.listed({}))
        assert report.violation is None
        assert len(called) == len({key for _, key, _ in called})


# Schedules that once failed, shrunk


def test_a_suspended_process_that_leaves_reports_no_damage() -> None:
    """It had read the changelog before another owner's commits, and the group's offset after them."""
    schedule = Schedule.listed(
        {"a1.partition-1.bounds#3": "cut 6", "world#4": "stop 0", "world#5": "halt 0"}, order=1295424259
    )
    report = run(SCENARIOS[named("rare deltas")], schedule)
    assert report.violation is None


def test_a_static_member_that_is_killed_in_a_rebalance_leaves_no_partition_without_an_owner() -> None:
    """It had revoked a partition, and came back in its place: Kafka moves nothing then."""
    schedule = Schedule.listed({"a1.commit-2.commit#2": "kill"})
    report = run(SCENARIOS[named("static members")], schedule)
    assert report.violation is None
    assert any(each.text.startswith("assignment_incomplete") for each in report.observer.timeline)


def test_an_input_that_is_created_again_before_a_replay_is_named_as_the_cause() -> None:
    """The process stood still between its look at the topics and the replay, which then read the new topic."""
    schedule = Schedule.listed(
        {"b1.partition-2.bounds#2": "halt 5", "world#4": "kill 1", "event#4": "create-again"}, order=0
    )
    report = run(SCENARIOS[named("input created again")], schedule)
    assert report.violation is None
    failed = [each.text for each in report.observer.timeline if each.who == "b1[2]" and each.text.startswith("failed")]
    assert failed
    assert all("error=TopicReplaced" in text for text in failed)
