"""The process's clock jumps, two days ahead, ten days back (F32): nothing waits for it, expires or is deleted by it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.processes import Process
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord

pytestmark = pytest.mark.kafka

CLOCK = Path(__file__).resolve().parents[1] / "support" / "apps" / "clock"
DAY = 86_400
OFTEN = {"STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1", "STATEHOLD_COMMIT__RENEW_AFTER": "2"}


def test_clock_steps_change_nothing(two_partitions: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, step = two_partitions, tmp_path / "step"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(CLOCK), os.environ.get("PYTHONPATH", "")))))
    monkeypatch.setenv("PROBE_CLOCK", str(step))
    process = stage.process("only", **OFTEN).await_live(0, 1)
    for days in (0, 2, -10, 0):
        step.write_text(str(days * DAY))
        full_snapshots = len(process.events("full_written"))
        stage.feed(500)
        stage.await_all()
        process.await_event("full_written", full_snapshots + 1)
    step.write_text(str(-10 * DAY))
    assert process.stop() == 0
    process = stage.process("only", **OFTEN).await_live(0, 1)  # a start whose clock is behind what it reads
    stage.feed(500)
    stage.await_all()
    calm(process)
    assert process.stop() == 0
    stage.verify()
    behind = time.time() - commit_records(stage)[-1].time / 1000
    assert behind > 9 * DAY, "the clock did jump"


def calm(process: Process) -> None:
    assert not process.events("failed", "producer_replaced", "rolled_back", "stuck", "outage", "thread_died")


def commit_records(stage: Stage) -> list[CommitRecord]:
    found = [records.unpack(row.value) for row in read_all(stage.servers, stage.names.changelog)[0]]
    return [commit_record for commit_record in found if isinstance(commit_record, CommitRecord)]
