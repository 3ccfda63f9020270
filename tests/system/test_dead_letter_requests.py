"""`statehold dlq add` against a real broker: a service without any policy gets past a record, across kills.

The verifier reads the input again and leaves out what is on the topic of dead letters: state, digest and outputs must
be those of the rest.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import time

import msgspec
import pytest
from tests.support import verify
from tests.support.apps.tally import POISON, Event
from tests.support.processes import ROOT, Process, await_true
from tests.support.stage import Stage, StageFactory
from tests.system.test_dead_letters import Read, read_all

from statehold.admin.dead_letter_request import RequestedDeadLetter
from statehold.admin.topics import ServiceTopics
from statehold.errors import UsageError

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.served:service"
#: a replay after most kills
SPARSE = {"PROBE_CLI": "1", "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "30", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}


def statehold(stage: Stage, *words: str, code: int = 0, **more: str) -> str:
    """What a command prints, errors included, in one line; `more` is added to its environment."""
    own = {**os.environ, **stage.environment(PROBE_COMMAND="1", **more), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "statehold.ops.cli.entry", *words]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return " ".join((done.stdout + done.stderr).split())


def poison(stage: Stage, number: int, key: str = "key-1") -> int:
    """Feed some records, one that fails, and some more; the offset of the bad one."""
    stage.feed(30, keys=5)
    at = stage.ends()[0]
    stage.send(msgspec.json.encode(Event(1_000_000 + number, POISON)), 0, key)
    stage.feed(30, keys=5)
    return at


def dead(stage: Stage) -> list[Read]:
    return read_all(stage.servers, stage.names.dead)


def check(stage: Stage, bad: list[int]) -> None:
    """Each bad record is one dead letter with its bytes; all others are in state, digest and outputs, once."""
    inputs = verify.read_all(stage.servers, stage.names.input)
    dead_letters = dead(stage)
    assert [int(each.headers["statehold-dead-offset"]) for each in dead_letters] == bad
    values = {row.offset: row.value for row in inputs[0]}
    assert [each.value for each in dead_letters] == [values[offset] for offset in bad]
    expected = verify.fold({0: [row for row in inputs[0] if row.offset not in bad]})
    stage.snapshots.check(expected)
    verify.check_outputs(stage.servers, stage.output, expected)


def await_failure(process: Process, offset: int) -> None:
    process.await_that(
        lambda: any(f"@{offset}" in str(event.get("cause")) for event in process.events("failed")),
        f"a failure at {offset}",
    )


def test_an_operator_gets_past_a_record_and_a_kill_changes_nothing(stages: StageFactory) -> None:
    stage = stages(1)
    stage.create_topics()
    stage.poison.touch()
    process = stage.process("a", **SPARSE).await_live(0)
    bad = poison(stage, 1)
    await_failure(process, bad)

    why = ("--why", "no such account, ticket 17")
    missing = statehold(stage, "dlq", "add", "0", str(bad), TARGET, *why, code=1)
    assert f"{stage.names.dead}: dead-letter a record: the topic does not exist. Nothing was sent" in missing
    advice = re.search(r"run `statehold (topics create [^`]*)`", missing)
    assert advice is not None
    statehold(stage, *shlex.split(advice[1]))

    committed = statehold(stage, "dlq", "add", "0", str(bad - 1), TARGET, *why, code=1)
    assert f"it is committed, the partition continues at {bad}" in committed
    later = statehold(stage, "dlq", "add", "0", str(bad + 1), TARGET, *why, code=1)
    assert f"has its next record at {bad}" in later
    overtakes = statehold(stage, "dlq", "add", "0", str(bad), TARGET, *why, code=1)
    assert "later records of the same key would overtake this one. Nothing was sent" in overtakes
    named = ("--name", stage.names.service, "--input", stage.names.input)
    statehold(stage, "dlq", "add", "0", str(bad), *named, *why, "--timeout", "3", code=1)
    assert "would overtake" in str(process.await_event("command_rejected")["cause"])
    assert dead(stage) == []

    done = statehold(stage, "dlq", "add", "0", str(bad), TARGET, *why, "--overtake")
    process.kill()
    assert f"0@{bad} is a dead letter: ValueError: poison" in done
    shown = statehold(stage, "dlq", "show", f"0@{bad}", TARGET)
    assert "no such account, ticket 17" in shown
    process.start()
    stage.await_partition(0, stage.ends()[0])
    check(stage, [bad])
    assert process.stop() == 0
    check(stage, [bad])
    statehold(stage, "snapshot", "verify", TARGET, "--replay")


@pytest.mark.long
@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_any_moment_leave_one_dead_letter_of_each_bad_record(
    stages: StageFactory, seed: int, rounds: int
) -> None:
    stage, rng = stages(1), random.Random(seed)
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output, stage.names.dead])
    assert all(finding.good for finding in topics.create("beginning", partitions=1))
    stage.poison.touch()
    process = stage.process("a", **SPARSE).await_live(0)
    bad: list[int] = []
    for number in range(rounds):
        bad.append(poison(stage, number))
        await_failure(process, bad[-1])
        requested = RequestedDeadLetter(stage.settings(), stage.names, stage.names.input, 0, bad[-1])
        sent = requested.send(requested.find(), f"round {number}", overtake=True)
        moment = rng.uniform(0.2, 3.0)
        process.kill()
        process.start()
        time.sleep(moment)  # the random moment itself; nothing is waited for
        process.kill()
        print(f"seed {seed}, round {number}: killed after {moment:.3f} s")
        process.start()
        assert requested.passed(sent, 60)
        dead_letter = requested.dead_letter()
        assert dead_letter is not None
        assert dead_letter.reason == f"round {number}"
        with pytest.raises(UsageError, match="is committed"):
            requested.find()
    stage.await_partition(0, stage.ends()[0])
    check(stage, bad)
    await_true(lambda: len(dead(stage)) == len(bad), "one dead letter each")
    assert process.stop() == 0


@pytest.mark.long
def test_a_service_that_started_before_these_topics_existed_obeys_at_once(stages: StageFactory) -> None:
    stage = stages(1)
    stage.create_topics()
    stage.poison.touch()
    process = stage.process("a", **SPARSE).await_live(0)
    bad = poison(stage, 1)
    await_failure(process, bad)
    add = ("dlq", "add", "0", str(bad), TARGET, "--why", "ticket 17", "--overtake")
    advice = re.search(r"run `statehold (topics create [^`]*)`", statehold(stage, *add, code=1))
    assert advice is not None
    statehold(stage, *shlex.split(advice[1]))
    began = time.monotonic()
    statehold(stage, *add)
    assert time.monotonic() - began < 30
    stage.await_partition(0, stage.ends()[0])
    statehold(stage, "pause", TARGET)
    statehold(stage, "resume", TARGET)
    check(stage, [bad])
    assert process.stop() == 0
