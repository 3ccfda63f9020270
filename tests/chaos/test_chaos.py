"""Short runs of the harness: a fixed seed in the default tier, other seeds and three brokers among the long tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.chaos import calling, schedule
from tests.chaos.arena import Shape
from tests.chaos.catching import CATCHES
from tests.chaos.failing import PARKS, PLAIN, Kinds
from tests.chaos.operating import Operator
from tests.chaos.run import Result, run
from tests.chaos.try_mutants import hunt, try_one

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

SECONDS = 50
SEED = 20279676  # a schedule in which each of SHORT occurs two times
#: a kill, a zombie, a storm of rebalances, a late commit, broken connections
SHORT = ["F1", "F4", "F15", "F17", "F18"]


def chaos(directory: Path, seed: int, seconds: float, codes: list[str] | None, brokers: int = 1) -> Result:
    (title, settings), (inputs, more, order) = schedule.mode(seed), schedule.inputs(seed)
    shape = Shape(brokers, 2 if codes else 3, 4, 200, settings=settings | order, inputs=inputs)
    planned = schedule.plan(seed, seconds, codes or schedule.usual(shape), shape)
    return run(shape, planned, directory, seed=seed, title=title + more)


def test_nothing_is_lost_or_doubled_under_a_fixed_schedule_of_faults(tmp_path: Path) -> None:
    result = chaos(tmp_path, SEED, SECONDS, SHORT)  # half as long again with start, recovery and the checkers
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.long
def test_a_partition_that_no_one_helps_is_stuck_and_none_of_its_records_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trade pauses its partition until the operator fixes the cause, and this operator does nothing."""
    monkeypatch.setattr(Operator, "look", lambda *_: None)
    number = itertools.count()
    monkeypatch.setattr(Kinds, "next", lambda _: PARKS if next(number) == 1000 else PLAIN)
    title, settings = schedule.mode(1)
    shape = Shape(1, 2, 4, 200, settings=settings, failing=1)
    result = run(shape, [], tmp_path, seed=1, title=title, recovery=15.0)
    stands = [text for text in result.verdict.findings["stuck"] if "records wait" in text]
    assert len(stands) == 1, result.verdict.lines()
    assert "lost" not in {anomaly for anomaly, texts in result.verdict.findings.items() if texts}


@pytest.mark.long
def test_nothing_is_lost_or_doubled_under_any_schedule(tmp_path: Path, seed: int) -> None:
    result = chaos(tmp_path, seed, 240, None)
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.long
def test_each_result_of_a_call_is_booked_once_whatever_the_called_system_does(tmp_path: Path, seed: int) -> None:
    title, settings = schedule.mode(seed)
    shape = Shape(1, 3, 4, 200, settings=settings | calling.SETTINGS, calls=True)
    planned = schedule.plan(seed, 90, ["H1", "H2", "H3", "H4", "F1", "F3", "F4"], shape)
    result = run(shape, planned, tmp_path, seed=seed, title=title)
    assert result.good, "\n".join(result.verdict.lines())
    assert result.verdict.figures["calls"] == result.verdict.figures["records"]


@pytest.mark.long
def test_a_ledger_that_re_keys_loses_and_makes_no_money(tmp_path: Path, seed: int) -> None:
    title, settings = schedule.mode(seed)
    shape = Shape(1, 3, 4, 200, settings=settings, rekeyed=True)
    planned = schedule.plan(seed, 120, schedule.usual(shape), shape)
    result = run(shape, planned, tmp_path, seed=seed, title=f"{title}, re-keying")
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.long
def test_each_request_takes_effect_once_and_all_get_its_answer(tmp_path: Path, seed: int) -> None:
    title, settings = schedule.mode(seed, failing=True)
    shape = Shape(1, 3, 4, 100, settings=settings, askers=3)
    planned = schedule.plan(seed, 90, schedule.usual(shape), shape)
    result = run(shape, planned, tmp_path, seed=seed, title=f"{title}, asked")
    assert result.good, "\n".join(result.verdict.lines())
    assert result.verdict.figures["ids"] > 100


@pytest.mark.long
def test_three_brokers_under_any_schedule(tmp_path: Path, seed: int) -> None:
    result = chaos(tmp_path, seed, 240, None, brokers=3)
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.long
@pytest.mark.parametrize("mutant", CATCHES)
def test_a_broken_statehold_is_caught(mutant: str, seed: int) -> None:
    assert hunt(mutant, seed)[1], f"{mutant} was not noticed with seed {seed} and those after it"


@pytest.mark.long
@pytest.mark.parametrize("mutant", CATCHES)
def test_the_schedule_that_catches_it_is_harmless_to_statehold(mutant: str, seed: int) -> None:
    result = try_one(mutant, seed, broken=False)
    assert result.good, "\n".join(result.verdict.lines())
