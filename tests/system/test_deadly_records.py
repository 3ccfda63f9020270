"""A record that ends the process: the next owners find it, commit what is before it, and keep it from the handler."""

from __future__ import annotations

import shlex
import time

import msgspec
import pytest
from tests.support.apps.tally import POISON, Event
from tests.support.processes import CLI, GLANCE, Process
from tests.support.stage import Stage, StageFactory
from tests.system.test_dead_letter_requests import check, dead, statehold

from statehold.admin.topics import ServiceTopics
from statehold.worker.transaction.suspect_buffer import CAREFUL

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.deadly:service"
WHY = ("--why", "ends the process, ticket 31", "--overtake")
#: of `os._exit`, and of a crash
ENDS = {7, -11}
DEATHS = 3


class DeadlyProcess(Process):
    command = tuple(each.replace("served:", "deadly:") for each in CLI)


def begin(stage: Stage, way: str, good: int = 2, **more: str) -> DeadlyProcess:
    """Some good records, one that ends the process, and one behind it."""
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output, stage.names.dead])
    assert all(finding.good for finding in topics.create("beginning", partitions=1, control=True))
    stage.poison.touch()
    stage.feed(good, keys=2)
    stage.send(msgspec.json.encode(Event(1_000_000, POISON)), 0, "key-1")
    stage.feed(1, keys=2)
    process = DeadlyProcess(
        "a",
        stage.directory,
        stage.environment(
            PROBE_DEADLY=way,
            STATEHOLD_GROUP__MEMBERSHIP="static",
            **more,
        ),
    )
    stage.processes["a"] = process
    return process


def die(process: Process, times: int = DEATHS) -> None:
    for _ in range(times):
        process.start()
        assert process.ended(90) in ENDS, process.tail()


def await_held(process: Process, offset: int) -> str:
    process.start()
    process.await_that(lambda: process.events("failed"), "it fails and lives on")
    (failure,) = process.events("failed")
    assert failure["error"] == "DeadlyRecord"
    cause = str(failure["cause"])
    assert f"[0]@{offset}: the last {DEATHS} processes died" in cause
    return cause


@pytest.mark.parametrize("way", ["crash", *(pytest.param(each, marks=pytest.mark.long) for each in ("leave", "take"))])
def test_the_record_is_found_and_an_operator_gets_past_it(stages: StageFactory, way: str) -> None:
    stage = stages(1)
    process = begin(stage, way)
    die(process)
    cause = await_held(process, 2)
    (died,) = process.events("process_died")
    assert (died["deaths"], died["offset"]) == (DEATHS, 2)
    assert stage.group.positions(stage.names.input)[0] == 2, "the good records before it are committed"

    shown = statehold(stage, "status", "--name", stage.names.service, code=1)
    command = f"statehold dlq add 0 2 {stage.names.options} --why TEXT"
    assert command in cause
    assert command in shown
    words = shlex.split(command.removeprefix("statehold ").replace("--why TEXT", ""))
    assert "0@2 is a dead letter: DeadlyRecord" in statehold(stage, *words, *WHY)
    stage.await_partition(0, 4)
    assert process.stop() == 0
    check(stage, [2])
    assert not any((stage.directory / "state").iterdir())


@pytest.mark.parametrize("remembers", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_stopped_service_obeys_at_its_next_start(stages: StageFactory, *, remembers: bool) -> None:
    stage = stages(1)
    process = begin(stage, "leave")
    die(process)
    await_held(process, 2)
    assert process.stop() == 0
    if not remembers:  # it starts on another machine
        for file in (stage.directory / "state").iterdir():
            file.unlink()
    named = ("--name", stage.names.service, "--input", stage.names.input)
    assert "next start dead-letters the record" in statehold(stage, "dlq", "add", "0", "2", *named, *WHY)
    process.start()
    stage.await_partition(0, 4)
    assert process.stop() == 0
    check(stage, [2])
    (dead_letter,) = dead(stage)
    assert dead_letter.headers["statehold-dead-reason"] == WHY[1].encode()


def test_a_policy_for_it_needs_no_operator(stages: StageFactory) -> None:
    stage = stages(1)
    process = begin(stage, "leave", PROBE_HANDLER="dead-lettered")
    die(process)
    process.start()
    stage.await_partition(0, 4)
    assert process.stop() == 0
    first, follower = dead(stage)
    assert first.headers["statehold-dead-error"] == b"DeadlyRecord"
    assert follower.headers["statehold-dead-why"] == b"followed"


@pytest.mark.long
def test_a_retry_gives_the_fixed_handler_the_record(stages: StageFactory) -> None:
    stage = stages(1)
    process = begin(stage, "leave")
    die(process)
    await_held(process, 2)
    stage.poison.unlink()
    statehold(stage, "retry", "0", "--name", stage.names.service)
    stage.await_partition(0, 4)
    assert process.stop() == 0
    check(stage, [])
    assert not any((stage.directory / "state").iterdir())


def test_kills_from_outside_blame_no_record(stages: StageFactory) -> None:
    stage = stages(1)
    process = begin(stage, "leave")
    stage.poison.unlink()
    for _ in range(DEATHS + 1):
        process.start()
        stage.await_all()
        process.kill()
        stage.feed(50, keys=2)
    process.start()
    stage.await_all()
    assert {event["deaths"] for event in process.events("process_died")} == {1}
    assert process.stop() == 0
    check(stage, [])


@pytest.mark.long
@pytest.mark.parametrize("handler", ["", "batched"])
def test_one_far_behind_the_position_is_found(stages: StageFactory, handler: str) -> None:
    """Farther than the records that are handled one by one, so a death names a batch first."""
    stage, good = stages(1), CAREFUL + 5_000
    process = begin(stage, "leave", good, PROBE_HANDLER=handler)
    starts = 0
    while not process.running or not process.events("failed"):
        if not process.running:
            assert starts < 7, process.tail()
            process.start()
            starts += 1
        time.sleep(GLANCE)
    (died,) = process.events("process_died")
    assert (died["offset"], died["last"]) == (good, good)
    assert stage.group.positions(stage.names.input)[0] == good
    words = ("dlq", "add", "0", str(good), "--name", stage.names.service, "--input", stage.names.input)
    statehold(stage, *words, *WHY)
    stage.await_partition(0, good + 2)
    assert process.stop() == 0
    check(stage, [good])
