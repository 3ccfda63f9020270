"""Processes killed with SIGKILL: outputs and state are as if nothing had happened (proof 5.1)."""

from __future__ import annotations

import random
import time

import pytest
from tests.support.stage import KIP848, Stage, StageFactory

pytestmark = pytest.mark.kafka

#: kills in the default tier, and among the long tests
KILLS, MANY_KILLS = 5, 10
#: records between two kills
RECORDS = 10_000
#: small transactions: many of them, so that kills hit every step of one
SMALL = {"STATEHOLD_COMMIT__MAX_RECORDS": "100"}
FULL_SNAPSHOTS = {
    "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1",
    "STATEHOLD_SNAPSHOT__KEEP": "1",
    "STATEHOLD_SNAPSHOT__SLICE_BUDGET": "0.0005",
}
VARIANTS: dict[str, dict[str, str]] = {
    "default": {},
    "consumer": KIP848,
    "deltas-now-and-then": {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "1"},
    "marks-only": {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off"},
    "full-snapshots-all-the-time": FULL_SNAPSHOTS,
    "full-snapshots-and-deltas-now-and-then": {**FULL_SNAPSHOTS, "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "1"},
}


@pytest.mark.long
def test_kills_lose_nothing_and_double_nothing(stage: Stage, seed: int) -> None:
    kill_in_a_loop(stage, seed, {}, KILLS, RECORDS)


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_kills_in_every_mode(stage: Stage, seed: int, variant: str) -> None:
    kill_in_a_loop(stage, seed, VARIANTS[variant], MANY_KILLS, 2 * RECORDS)


def kill_in_a_loop(stage: Stage, seed: int, settings: dict[str, str], kills: int, records: int) -> None:
    rng = random.Random(seed)
    pair = [stage.process(name, **SMALL, **settings) for name in ("a", "b")]
    for number in range(1, kills + 1):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition")
        stage.feed(records)
        moment = rng.uniform(0, 0.5)
        time.sleep(moment)  # the random moment itself; nothing is waited for
        held = sorted(victim.live())
        victim.kill()
        print(f"seed {seed}, kill {number}: {victim.name} after {moment:.3f} s with {held}, at {stage.position()}")
        victim.start()
    stage.await_all()
    if settings:  # without a delta in every commit, only the full of a clean stop holds the whole state
        for process in pair:
            process.await_event("starting")  # only now does it hear SIGTERM: the last kill was a moment ago
        assert [process.stop() for process in pair] == [0, 0]
    stage.verify()


def test_a_kill_of_all_in_the_middle_of_their_restores(stages: StageFactory) -> None:
    """Twice: the second owner is killed while it replays, the third one finishes."""
    replay = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}
    stage = stages(2).create_topics()
    stage.feed(2000)
    pair = [stage.process(name, **replay) for name in ("a", "b")]
    stage.await_all()
    for process in pair:
        process.kill()
    # From here on records take ten milliseconds, so the replay of the gap takes ten seconds.
    slow = [stage.process(name, **replay, PROBE_SLOW="0.01") for name in ("c", "d")]
    slow[0].await_that(lambda: any(process.events("restored") for process in slow), "a restored partition")
    for process in slow:
        assert not process.events("live"), "it was too late to kill it"
        process.kill()
    last = stage.process("e", **replay).await_live(0, 1)
    assert sum(event["records"] for event in last.events("replayed")) == 2000
    stage.feed(500)
    stage.await_all()
    assert last.stop() == 0
    stage.verify()
