"""Each policy for records that fail, against a running service, looked at and settled by an operator's commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from tests.support.apps import policies as app
from tests.support.apps.tally import Event, Line
from tests.support.processes import ROOT, Process, await_true
from tests.support.stage import Stage, StageFactory
from tests.system.test_dead_letters import Read, read_all

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.policies:service"


class Policed(Process):
    command = ("-m", "statehold.ops.cli.entry", "run", TARGET, "--set", "log.format=json")


class Operated:
    """A stage, one process of the service, and `statehold` in parallel."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self._ids = stage, 0
        self._environment = stage.environment(STATEHOLD_SNAPSHOT__DELTA_INTERVAL="30")
        self.process = Policed("a", stage.directory, self._environment | {"PROBE_RUNS": "1"})

    def statehold(self, *words: str, code: int = 0) -> str:
        """What a command prints; its target is the service."""
        done = self._run(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, **self._environment, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "statehold.ops.cli.entry", *words]
        return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=120, check=False)

    def rejects(self, *words: str) -> str:
        """What a command that does nothing complains of."""
        return self._run(*words).stderr

    def answer(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.statehold(*words, "--json", code=code))

    def send(self, key: str, amount: int, partition: int = 0) -> int:
        """The event's id."""
        self._ids += 1
        self.stage.send(msgspec.json.encode(Event(self._ids, amount)), partition, key)
        return self._ids

    def answers(self) -> dict[str, list[int]]:
        """By key the ids of the events that have an answer, in their order."""
        decode, found = msgspec.json.Decoder(Line).decode, dict[str, list[int]]()
        for each in read_all(self.stage.servers, self.stage.output):
            found.setdefault((each.key or b"").decode(), []).append(decode(each.value or b"").id)
        return found

    def await_answers(self, **wanted: list[int]) -> None:
        await_true(lambda: self.answers() == wanted, f"answers {wanted}, not {self.answers()}", 90)

    def dead_letters(self) -> list[tuple[str, str, str]]:
        """Those that wait: key, error, why."""
        return [(each["key"], each["error"], each["why"]) for each in self.answer("dlq", "list", TARGET)]

    def dead(self) -> list[Read]:
        return read_all(self.stage.servers, self.stage.names.dead)


@pytest.fixture
def operated(stages: StageFactory) -> Operated:
    """Two partitions, topics made by the command, the process live."""
    made = Operated(stages(2))
    names = made.stage.names
    created = made.answer("topics", "create", TARGET, "--start-at", "beginning", "--partitions", "2")
    assert {names.dead, names.retry(1), names.retry(2), names.retry(3600), names.control} <= {
        each["topic"] for each in created
    }
    made.stage.poison.touch()
    made.stage.processes["a"] = made.process
    made.process.start().await_live(0, 1)
    return made


def test_the_commands_show_and_resolve_dead_letters_and_retries(operated: Operated) -> None:
    first, rejects = operated.send("ann", 1), operated.send("ann", app.REFUSED)
    follows, down = operated.send("ann", 2), operated.send("bob", app.DOWN)
    operated.send("bob", app.LARGE)
    operated.stage.send(b"garbage", 0, "carl")
    operated.send("dora", app.LONG)
    later, last = operated.send("dora", app.LATER), operated.send("bob", 3)
    operated.await_answers(ann=[first], bob=[last], dora=[later])
    assert operated.dead_letters() == [
        ("ann", "Refused", "raised"),
        ("ann", "Refused", "followed"),
        ("bob", "Down", "raised"),
        ("bob", "OutputRefused", "raised"),
        ("carl", "UndecodableRecord", "raised"),
    ]
    check_dead_letter(operated, offset=1, key=b"ann", id=rejects)
    assert [each["later"] for each in operated.answer("lag", TARGET)] == [1, 0]
    status = " ".join(operated.statehold("status", "--service", operated.stage.names.service).split())
    assert "2 blocked key(s)" in status
    assert "1 record(s) wait for a retry" in status

    again = operated.answer("dlq", "replay", TARGET, "--key", "ann", "--why", "too early", code=1)
    assert [(each["asked"], each["done"], each["failed"]) for each in again] == [(1, 0, ["0@1"])]
    operated.stage.poison.unlink()
    operated.statehold("dlq", "replay", TARGET, "--key", "ann", "--why", "fixed")
    behind = operated.send("ann", 4)
    operated.await_answers(ann=[first, rejects, follows, behind], bob=[last], dora=[later])
    operated.statehold("dlq", "discard", TARGET, "--all", "--why", "a test")
    assert operated.dead_letters() == []
    shown = operated.answer("dlq", "show", "0@1", TARGET)
    assert [each.get("what") for each in shown] == [None, "dlq-failed-again", "dlq-replayed"]
    assert [each["why"] for each in shown] == ["raised", "too early", "fixed"]
    traces = [each for each in operated.dead() if each.value is None]
    assert len(traces) == 1 + 2 + 3, "each step leaves one trace"
    assert down not in operated.answers()["bob"]

    assert operated.process.stop() == 0
    operated.answer("topics", "check", TARGET)
    words = ("state", "repartition", TARGET, "--to", "4", "--why", "more load", "--dry-run")
    assert "1 record(s) are pending on" in operated.rejects(*words)
    operated.statehold("snapshot", "verify", TARGET, "--replay")


def check_dead_letter(operated: Operated, offset: int, key: bytes, id: int) -> None:
    """As it was received, on its partition, with where it came from."""
    names = operated.stage.names
    found = next(each for each in operated.dead() if each.headers["statehold-dead-offset"] == str(offset).encode())
    given = next(each for each in read_all(operated.stage.servers, names.input) if each.offset == offset)
    assert (found.partition, found.key, found.value) == (given.partition, key, given.value)
    assert msgspec.json.decode(found.value or b"", type=Event).id == id
    answer = {name.removeprefix("statehold-dead-"): value.decode() for name, value in found.headers.items()}
    assert (answer["topic"], answer["partition"], answer["error"]) == (names.input, "0", "Refused")
    assert int(answer["attempts"]) >= 1


@pytest.mark.long
def test_park_pauses_a_partition_a_stop_ends_a_pause_and_stop_ends_the_service(operated: Operated) -> None:
    failed, behind = operated.send("ann", app.PARKS, 1), operated.send("bob", 1, 1)
    process = operated.process
    assert process.await_event("failed")["partition"] == 1
    paused = operated.send("carl", app.PAUSED)
    assert process.await_event("record_retried")["partition"] == 0
    assert process.stop() == 0, "a pause of minutes ends with the stop"
    assert operated.answers() == {}
    operated.stage.poison.unlink()
    process.start().await_live(0, 1)
    operated.await_answers(ann=[failed], bob=[behind], carl=[paused])

    operated.stage.poison.touch()
    failed_again = operated.send("ann", app.PARKS, 1)
    process.await_event("failed")
    operated.stage.poison.unlink()
    operated.statehold("retry", "1", "--service", operated.stage.names.service)
    operated.await_answers(ann=[failed, failed_again], bob=[behind], carl=[paused])
    operated.send("ann", app.STOPS, 1)
    await_true(lambda: process.exit_code is not None, "the service ends", 90)
    assert process.exit_code not in (0, -9)
    assert "Stops" in process.tail()
    assert operated.dead_letters() == []
