"""Workers whose wall clock is wrong (F32): nothing is deleted, nothing is late, handlers see the time of records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.stage import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: Debian's package libfaketime
FAKE = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def faked(offset: str) -> dict[str, str]:
    if FAKE is None:
        pytest.skip("needs libfaketime: apt-get install libfaketime")
    # Without the last one it converts the deadlines of librdkafka's waits by the clock that it fakes: none ends.
    waits = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    return {"LD_PRELOAD": str(FAKE), "FAKETIME": offset, **waits}


@pytest.mark.parametrize("offset", ["-10d", "+30m"])
def test_a_worker_with_a_wrong_clock_works_and_its_state_stays(two_partitions: Stage, offset: str) -> None:
    stage = two_partitions
    stage.feed(500)
    wrong = stage.process("wrong", **faked(offset)).await_live(0, 1)
    stage.await_all()
    assert wrong.events("live")[0]["timestamp"], "it logs with its own clock"
    assert wrong.stop() == 0
    stage.feed(500)
    right = stage.process("right").await_live(0, 1)
    stage.await_all()
    again = stage.process("wrong", **faked(offset))
    stage.feed(500)
    stage.await_all()
    assert again.stop() == right.stop() == 0
    stage.verify()


def test_a_clock_two_days_ahead_is_named(two_partitions: Stage) -> None:
    """Brokers refuse records of the future: the outputs' topic keeps the worker's time."""
    stage = two_partitions
    stage.send(b'{"id":0,"amount":1}', 0)
    ahead = stage.process("ahead", **faked("+2d"))
    told = ahead.await_event("failed", seconds=180)
    assert told["partition"] == 0
    assert "INVALID_TIMESTAMP" in told["cause"]
    assert "clock" in told["cause"]
    ahead.kill()
    stage.await_empty_group()
    right = stage.process("right").await_live(0, 1)
    stage.count(1).await_all()
    assert right.stop() == 0
    stage.verify()
