"""Processes killed with SIGKILL: outputs and state are as if nothing had happened (proof 5.1)."""

from __future__ import annotations

import random
import time

import pytest
from tests.system.stage import Stage

pytestmark = pytest.mark.kafka

KILLS, RECORDS = 10, 200_000
#: small transactions: many of them, so that kills hit every step of one
SMALL = {"HOLDFAST_COMMIT__MAX_RECORDS": "100"}


def test_ten_kills_lose_nothing_and_double_nothing(stage: Stage, seed: int) -> None:
    moments = random.Random(seed)
    pair = [stage.process(name, **SMALL) for name in ("a", "b")]
    for number in range(1, KILLS + 1):
        victim = moments.choice(pair)
        victim.await_that(victim.live, "a live partition")
        stage.feed(RECORDS // KILLS)
        moment = moments.uniform(0, 0.5)
        time.sleep(moment)  # the random moment itself; nothing is waited for
        held = sorted(victim.live())
        victim.kill()
        print(f"seed {seed}, kill {number}: {victim.name} after {moment:.3f} s with {held}, at {stage.position()}")
        victim.start()
    stage.await_all()
    stage.verify()
