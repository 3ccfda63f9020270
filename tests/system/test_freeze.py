"""C code that waits with the interpreter's lock: the guard ends the process, and only then."""

from __future__ import annotations

import signal

import pytest
from tests.support.processes import CLI, Process, await_true
from tests.support.stage import Stage, StageFactory

from statehold.common.exit_codes import Exit

pytestmark = pytest.mark.kafka

GUARD = {"STATEHOLD_SERVICE__FREEZE_EXIT": "4"}
SAYS = "statehold: no Python thread has run for 3 s"


class FrozenProcess(Process):
    command = tuple(each.replace("served:", "frozen:") for each in CLI)


def frozen(stage: Stage, where: str) -> Process:
    process = stage.processes["frozen"] = FrozenProcess(
        "frozen", stage.directory, stage.environment(PROBE_FROZEN=where, **GUARD)
    )
    return process.start().await_live(0)


def assert_ended(process: Process, function: str) -> None:
    assert process.ended() == Exit.FROZEN, process.tail()
    log = process.log.read_text(encoding="utf-8")
    assert SAYS in log
    assert f"in {function}" in log.partition(SAYS)[2], "the stack names the function that keeps the lock"


def test_while_live(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    process = frozen(stage, "live")
    stage.hold.touch()
    assert_ended(process, "freeze_while_live")


def test_at_a_stop(stages: StageFactory) -> None:
    process = frozen(stages(1).create_topics(), "stop")
    process.signal(signal.SIGTERM)
    assert_ended(process, "freeze")


def test_in_a_handler_and_the_next_owner_goes_on(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    process = stage.process("guarded", PROBE_CLI="1", **GUARD).await_live(0)
    stage.feed(50)
    stage.await_all()
    stage.hold.write_text("600")
    stage.send(b'{"id":50,"amount":-3}', 0, "key")
    assert_ended(process, "stay")
    stage.processes.pop("guarded").kill()  # its exit code is no failure here
    stage.process("heir").await_live(0)
    stage.count(1).await_all()
    stage.verify()


def test_a_process_that_is_stopped_and_continued_lives_on(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    process = stage.process("guarded", PROBE_CLI="1", **GUARD).await_live(0)
    for _ in range(2):
        process.signal(signal.SIGSTOP)
        with pytest.raises(AssertionError, match="not within 6 s"):
            await_true(lambda: not process.running, "it ends", 6)
        process.signal(signal.SIGCONT)
        stage.feed(20)
        stage.await_all()
    assert process.stop() == 0
    stage.verify()
