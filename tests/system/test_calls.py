"""Calls on a real broker: commands on a running service, and which calls a kill repeats."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.feeding import Feed
from tests.examples.around import ROOT, STATEHOLD, Scene, committed
from tests.support.apps import asking
from tests.support.desk import await_true

from statehold.admin.commands import Commander
from statehold.config import load
from statehold.dev import Cluster

pytestmark = pytest.mark.kafka
TARGET = "tests.support.apps.asking:service"


@pytest.fixture
def scene(kafka: Cluster, tmp_path: Path) -> Iterator[Scene]:
    rejects = tmp_path / "rejects"
    rejects.write_text("b c", encoding="utf-8")
    files = {"ASKING_REJECTS": str(rejects), "ASKING_NOTES": str(tmp_path / "notes")}
    made = Scene(kafka.bootstrap_servers, tmp_path, asking.service, "asking-answers", **files)
    yield made
    made.close()


def statehold(scene: Scene, *words: str, code: int = 0) -> Any:
    """Run a command with --json, and return what it prints."""
    done = run(scene, *words)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def run(scene: Scene, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(STATEHOLD), *words, TARGET, "--json"],
        env={**os.environ, **scene.environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def given(scene: Scene, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return id and text of each committed answer to one of these texts; the other test has the same topic."""
    pairs = [value.decode().split() for _, _, value in committed(scene.servers, "asking-answers")]
    return [(name, text) for name, text in pairs if text.lower() in texts]


def answers(scene: Scene, texts: Iterable[str]) -> set[str]:
    return {text for _, text in given(scene, texts)}


def test_a_kill_repeats_exactly_the_calls_in_flight(scene: Scene, tmp_path: Path) -> None:
    """No record comes after the answers: each commits by itself."""
    notes, feed = tmp_path / "notes", Feed(scene.servers, scene.names.input)
    hanging = [f"hang{number}" for number in range(7)]
    texts = [f"text{number}" for number in range(40)]
    everything = {*hanging, *texts}
    statehold(scene, "topics", "create", "--control", "--start-at", "end")
    process = scene.run(TARGET)
    feed.send((b"k", each.encode()) for each in texts[:20] + hanging)
    feed.send((b"k", each.encode()) for each in texts[20:])
    done = {each.upper() for each in texts}
    await_true(lambda: answers(scene, everything) == done, "all others are answered", 120)
    await_true(lambda: len(notes.read_text(encoding="utf-8").split()) == 47, "all are asked", 60)
    scene.kill(process)
    with notes.open("a", encoding="utf-8") as file:
        file.write("answer\n")
    scene.run(TARGET)
    await_true(lambda: answers(scene, everything) == done | {each.upper() for each in hanging}, "all are answered", 120)
    asked = Counter(notes.read_text(encoding="utf-8").split())
    found = given(scene, everything)
    assert len(found) == 47
    assert {name: asked[name] for name, _ in found} == {name: 1 + text.startswith("HANG") for name, text in found}


def test_dead_calls_are_made_again_or_discarded(scene: Scene, tmp_path: Path) -> None:
    def dead() -> dict[str, str]:
        return {each["argument"]: each["id"] for each in statehold(scene, "calls", "list", "--dead")}

    statehold(scene, "topics", "create", "--control", "--start-at", "end")
    Feed(scene.servers, scene.names.input).send((b"k", each.encode()) for each in "abcd")
    scene.run(TARGET)
    await_true(lambda: set(dead()) == {"b", "c"}, "two calls are dead", 120)
    no_topic = run(scene, "dlq", "list")
    assert no_topic.returncode != 0
    assert f"no record is a dead letter. Next: `statehold calls list {TARGET} --dead` lists dead calls" in (
        no_topic.stderr
    )
    assert answers(scene, "abcd") == {"A", "D"}
    ids = dead()
    shown = statehold(scene, "calls", "show", ids["b"])
    assert (shown["state"], shown["error"]) == ("dead", "CallRejected: b is unknown")
    (tmp_path / "rejects").write_text("c", encoding="utf-8")
    assert [each["id"] for each in statehold(scene, "calls", "retry", "--id", ids["b"], "--dry-run")] == [ids["b"]]
    statehold(scene, "calls", "retry", "--id", ids["b"])
    await_true(lambda: "B" in answers(scene, "abcd"), "the call is answered", 60)
    statehold(scene, "calls", "discard", "--all", "--why", "ticket 17")
    await_true(lambda: statehold(scene, "calls", "list") == [], "no call is left", 60)
    assert answers(scene, "abcd") == {"A", "B", "D"}
    statehold(scene, "calls", "retry", "--all", code=1)
    statehold(scene, "calls", "show", ids["c"], code=1)
    statehold(scene, "calls", "discard", "--why", "neither --id nor --all", code=2)
    assert "calls_resolved" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_command_about_calls_of_a_stopped_service_says_so_at_once_and_counts_at_the_next_start(
    scene: Scene, tmp_path: Path
) -> None:
    statehold(scene, "topics", "create", "--control", "--start-at", "end")
    Feed(scene.servers, scene.names.input).send([(b"k", b"b")])
    process = scene.run(TARGET)
    name = await_true(lambda: statehold(scene, "calls", "list", "--dead"), "a call is dead", 120)[0]["id"]
    process.terminate()
    process.wait(60)
    commander = Commander(load(env=scene.environment), scene.names)
    await_true(commander.is_stopped, "the group has forgotten its static member", 60)
    waits = run(scene, "calls", "discard", "--id", name, "--why", "ticket 17", "--timeout", "3600")
    assert waits.returncode == 1
    assert "The command stays on the control topic and takes effect at the next start. Next: `statehold" in waits.stderr
    scene.run(TARGET)
    await_true(lambda: name not in {each["id"] for each in statehold(scene, "calls", "list")}, "it is gone", 120)
