"""Sinks on real servers: whatever is killed, frozen, restarted or cut, the tables are a recomputation of the input."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from examples.sinks.server import Postgres
from tests.sinks.stage import Stage, await_true
from tests.sinks.worker import POINTS, REFUSED
from tests.support.wire import How, Wire

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


class Stages(Protocol):
    def __call__(self, partitions: int, port: int = 0, **more: str) -> Stage: ...


@pytest.fixture
def stages(kafka: Cluster, postgres: Postgres, tmp_path: Path) -> Iterator[Stages]:
    made: list[Stage] = []

    def stage(partitions: int, port: int = 0, **more: str) -> Stage:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Stage(kafka.bootstrap_servers, postgres, directory, partitions, port, **more))
        return made[-1]

    yield stage
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "points", [["after_database"], pytest.param([*POINTS], marks=pytest.mark.long)], ids=["between", "everywhere"]
)
def test_the_tables_are_what_the_payments_say_whatever_is_killed(stages: Stages, seed: int, points: list[str]) -> None:
    """kill -9 at every step between the handler and the last commit."""
    stage = stages(2)
    process = stage.start("one", static=True)
    stage.feed(50, seed)
    stage.await_booked()
    for point in points:
        stage.arm(point, "kill")
        if point.endswith("_take"):
            process.kill()
            process.wait()
            process = stage.start("one", static=True)
        stage.feed(50, seed)
        assert process.wait(120) == -signal.SIGKILL
        assert stage.reached(point), point
        process = stage.start("one", static=True)
        stage.feed(20, seed)
        stage.await_booked()
    process.terminate()
    assert process.wait(60) == 0
    assert stage.agrees()
    assert '"ahead": ' in stage.log("one"), "no process has met a database that is ahead"


@pytest.mark.long
def test_a_rejected_row_is_a_dead_letter_at_any_kill(stages: Stages, seed: int) -> None:
    """kill -9 while the record is looked for, and between the two commits of what was found."""
    stage = stages(2, SINK_STRICT="1")
    process = stage.start("one", static=True)
    stage.feed(100, seed)
    stage.await_booked()
    for point in (REFUSED, "after_database") * 4:
        stage.arm(point, "kill")
        for _ in range(20):  # until one is refused
            stage.feed(50, seed)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
                break
        assert process.wait(120) == -signal.SIGKILL
        assert stage.reached(point), point
        process = stage.start("one", static=True)
        stage.feed(50, seed)
        stage.await_booked()
    process.terminate()
    assert process.wait(60) == 0
    assert stage.bad > 0
    assert stage.agrees()


@pytest.mark.long
@pytest.mark.parametrize("point", ["before_rows", "after_database"])
def test_a_zombie_is_rejected_wherever_it_was_frozen(stages: Stages, seed: int, point: str) -> None:
    """Frozen with the row's lock in its hands, and between the two commits; others take over, then it comes back."""
    stage = stages(2)
    zombie = stage.start("zombie")
    stage.feed(50, seed)
    stage.await_booked()
    stage.arm(point, "freeze")
    stage.feed(50, seed)
    await_true(lambda: bool(stage.reached(point)), lambda: f"no process came to {point}")
    stage.start("two")
    stage.await_booked()
    stage.feed(50, seed)
    stage.await_booked()
    zombie.send_signal(signal.SIGCONT)
    await_true(lambda: "lost" in stage.log("zombie") or "fenced_by_new_owner" in stage.log("zombie"), stage.tail)
    stage.feed(50, seed)
    stage.await_booked()
    for process in stage.processes.values():
        process.terminate()
        assert process.wait(60) == 0
    assert stage.agrees()


@pytest.mark.parametrize("how", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_connection_that_is_reset_at_the_commit(stages: Stages, postgres: Postgres, seed: int, how: How) -> None:
    with Wire(postgres.port) as wire:
        stage = stages(1, wire.port)
        process = stage.start("one")
        stage.feed(50, seed)
        stage.await_booked()
        wire.strike(b"COMMIT", how)
        stage.feed(50, seed)
        assert wire.struck.wait(120)
        stage.feed(50, seed)
        stage.await_booked()
        process.terminate()
        assert process.wait(60) == 0
        assert stage.agrees()
        assert '"rolled_back"' in stage.log("one")


@pytest.mark.long
def test_a_server_that_is_restarted_or_frozen(stages: Stages, postgres: Postgres, seed: int) -> None:
    stage = stages(2)
    process = stage.start("one")
    stage.feed(50, seed)
    stage.await_booked()
    postgres.stop()
    stage.feed(50, seed)
    await_true(lambda: '"sink_retry"' in stage.log("one"), stage.tail)
    postgres.start()
    stage.await_booked()
    postgres.pause()
    try:
        stage.feed(50, seed)
        retries = stage.log("one").count('"sink_retry"')
        await_true(lambda: stage.log("one").count('"sink_retry"') > retries, stage.tail)
    finally:
        postgres.resume()
    stage.await_booked()
    process.terminate()
    assert process.wait(60) == 0
    assert stage.agrees()
    assert '"restoring"' not in stage.log("one").partition('"sink_retry"')[2], "the state has stayed in memory"


@pytest.mark.long
def test_rebalances_between_processes_that_come_and_go(stages: Stages, seed: int) -> None:
    """Eight partitions; clean stops, kills and newcomers while payments come."""
    stage = stages(8)
    stage.start("p0")
    for round_ in range(1, 9):
        stage.start(f"p{round_}")
        for _ in range(10):
            stage.feed(50, seed)
        leaver = stage.processes[f"p{round_ - 1}"]
        (leaver.kill if round_ % 2 else leaver.terminate)()
        leaver.wait(60)
        stage.await_booked()
    stage.feed(50, seed)
    stage.await_booked()
    last = stage.processes["p8"]
    last.terminate()
    assert last.wait(60) == 0
    assert stage.agrees()
