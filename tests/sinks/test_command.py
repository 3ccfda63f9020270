"""`statehold sink init | show` on real servers, as an operator uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.sinks.server import Postgres
from tests.sinks.stage import ROOT, Stage

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def stage(kafka: Cluster, postgres: Postgres, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(kafka.bootstrap_servers, postgres, tmp_path, 2)
    yield made
    made.close()


def sink(stage: Stage, *arguments: str) -> tuple[int, Any, str]:
    """Exit code, the answer, and stderr."""
    target = [str(Path(sys.executable).with_name("statehold")), "sink", arguments[0], "tests.sinks.worker:service"]
    environment = {**os.environ, **stage.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*target, *arguments[1:], "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_a_disagreement_is_reported_and_an_operator_may_adopt_it(stage: Stage) -> None:
    """In one test, because each step stands on the one before."""
    code, found, _ = sink(stage, "show")
    assert code == 0
    assert [(each["partition"], each["commit_record"], each["position"], each["trouble"]) for each in found] == [
        (0, 0, 0, ""),
        (1, 0, 0, ""),
    ]
    stage.run("DELETE FROM statehold_sink WHERE partition = 0")
    stage.run("UPDATE statehold_sink SET position = 7, note = '' WHERE partition = 1")
    code, found, said = sink(stage, "show")
    assert code == 1
    assert "holds no position" in found[0]["trouble"]
    assert "another history" in found[1]["trouble"]
    assert "statehold sink init" in said
    code, found, said = sink(stage, "init")
    assert code == 1
    assert [each["made"] for each in found] == [True, False]
    assert "another history" in said
    assert stage.run("SELECT partition, position FROM statehold_sink ORDER BY 1") == [(0, 0), (1, 7)]
    code, found, _ = sink(stage, "init", "--adopt")
    assert code == 0
    assert [each["made"] for each in found] == [False, True]
    assert sink(stage, "init")[0] == 0
    stage.start("one")
    stage.feed(30)
    stage.await_booked()
    assert stage.agrees()
    stage.run("ALTER TABLE statehold_sink RENAME TO elsewhere")
    code, _, said = sink(stage, "show")
    assert code == 1
    assert "Next: run `statehold sink init MODULE:SERVICE`, which creates the table of positions" in said
