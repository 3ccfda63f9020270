"""A handler that forks: rejected in the parent, no child continues with the partition; other ways work."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support import verify
from tests.support.processes import Process, await_true
from tests.support.stage import Stage, StageFactory

from statehold.dev.ports import free_ports

pytestmark = pytest.mark.kafka

REJECTED = ("fork", "process", "pool-fork")


class ForkingProcess(Process):
    command = (
        *("-m", "statehold.ops.cli.entry", "run", "tests.support.apps.forking:service"),
        *("--set", "log.format=json"),
    )


def answers(stage: Stage) -> list[str]:
    rows = verify.read_all(stage.servers, stage.output)[0]
    return [row.value.decode() for row in rows]


def send(stage: Stage, *ways: str) -> None:
    for way in ways:
        stage.send(way.encode(), 0)


def test_a_fork_in_a_handler_is_rejected_and_other_ways_work(stages: StageFactory) -> None:
    stage = stages(1)
    stage.create_topics()
    process = stage.processes["a"] = ForkingProcess("a", stage.directory, stage.environment())
    process.start().await_live(0)
    ways = ("plain", *REJECTED, "unseen", "pool-spawn", "pool-forkserver", "run", "run-before", "plain")
    send(stage, *ways)
    await_true(lambda: len(answers(stage)) >= len(ways), "an answer to each", 90)
    found = dict(each.split(" ", 2)[2].split(": ", 1) for each in answers(stage))
    for way in REJECTED:
        assert found[way].startswith("UsageError: os.fork() in a handler"), found[way]
    assert found["unseen"] == "exit code 70"
    assert "a child of os.fork() in a handler ends at once" in process.log.read_text(encoding="utf-8")
    assert (found["pool-spawn"], found["pool-forkserver"]) == ("42", "42")
    assert (found["run"], found["run-before"], found["plain"]) == ("42", "0", "ok")
    assert len(answers(stage)) == len(ways), "each record once"
    assert process.stop() == 0


def test_a_child_of_another_thread_does_not_keep_the_ops_port(stages: StageFactory, tmp_path: Path) -> None:
    stage, child = stages(1), tmp_path / "child"
    stage.create_topics()
    where = f"127.0.0.1:{free_ports(1)[0]}"  # any process may take the default one
    own = stage.environment(PROBE_CHILD=str(child), STATEHOLD_OPS__LISTEN=where)
    process = stage.processes["a"] = ForkingProcess("a", stage.directory, own)
    process.start().await_live(0)
    assert process.await_event("ops_open")["url"] == f"http://{where}"
    send(stage, "thread")
    await_true(child.exists, "a child", 60)
    await_true(lambda: child.read_text(encoding="utf-8").isdecimal(), "its number")
    pid = int(child.read_text(encoding="utf-8"))
    try:
        process.kill()
        os.kill(pid, 0)  # it lives on
        second = stage.processes["b"] = ForkingProcess("b", stage.directory, own)
        second.start().await_live(0)
        assert second.await_event("ops_open")["url"] == f"http://{where}"
        assert second.stop() == 0
    finally:
        os.kill(pid, signal.SIGKILL)
