"""`statehold calls` on a running service: dead calls are listed, made again, and discarded with a reason."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.feeding import Feed
from tests.examples.around import ROOT, STATEHOLD, Scene, committed
from tests.support.apps import asking
from tests.support.desk import await_true

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka
TARGET = "tests.support.apps.asking:service"


@pytest.fixture
def scene(kafka: Cluster, tmp_path: Path) -> Iterator[Scene]:
    rejects = tmp_path / "rejects"
    rejects.write_text("b c", encoding="utf-8")
    made = Scene(kafka.bootstrap_servers, tmp_path, asking.service, "asking-answers", ASKING_REJECTS=str(rejects))
    yield made
    made.close()


def statehold(scene: Scene, *words: str, code: int = 0) -> Any:
    """Run a command with --json, and return what it prints."""
    done = subprocess.run(
        [str(STATEHOLD), *words, TARGET, "--json"],
        env={**os.environ, **scene.environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def test_dead_calls_are_made_again_or_discarded(scene: Scene, tmp_path: Path) -> None:
    def dead() -> dict[str, str]:
        return {each["argument"]: each["id"] for each in statehold(scene, "calls", "list", "--dead")}

    def answers() -> set[str]:
        return {value.decode().split()[1] for _, _, value in committed(scene.servers, "asking-answers")}

    statehold(scene, "topics", "create", "--control", "--start-at", "end")
    Feed(scene.servers, scene.names.input).send((b"k", each.encode()) for each in "abcd")
    scene.run(TARGET)
    await_true(lambda: set(dead()) == {"b", "c"}, "two calls are dead", 120)
    assert answers() == {"A", "D"}
    ids = dead()
    shown = statehold(scene, "calls", "show", ids["b"])
    assert (shown["state"], shown["error"]) == ("dead", "CallRejected: b is unknown")
    (tmp_path / "rejects").write_text("c", encoding="utf-8")
    assert [each["id"] for each in statehold(scene, "calls", "retry", "--id", ids["b"], "--dry-run")] == [ids["b"]]
    statehold(scene, "calls", "retry", "--id", ids["b"])
    await_true(lambda: "B" in answers(), "the call is answered", 60)
    statehold(scene, "calls", "discard", "--all", "--why", "ticket 17")
    await_true(lambda: statehold(scene, "calls", "list") == [], "no call is left", 60)
    assert answers() == {"A", "B", "D"}
    statehold(scene, "calls", "retry", "--all", code=1)
    statehold(scene, "calls", "show", ids["c"], code=1)
    statehold(scene, "calls", "discard", "--why", "neither --id nor --all", code=2)
    assert "calls_resolved" in (tmp_path / "log").read_text(encoding="utf-8")
