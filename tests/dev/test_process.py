"""Signals reach the process that was started, never a later owner of its pid."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.processes import await_true

from statehold.dev.process import Identity, command_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> Identity:
    found = Identity.of(process.pid)
    assert found is not None
    return found


def test_a_living_process_is_itself(sleeper: subprocess.Popen[bytes]) -> None:
    assert identity(sleeper).is_alive()
    # the system shows no command of a process that has not reached its program yet
    await_true(lambda: "sleep" in command_of(sleeper.pid), "the command of the process", 10)


def test_another_process_with_the_pid_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = replace(identity(sleeper), started="an earlier life")

    assert not earlier.is_alive()
    assert not earlier.signal(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_signal_reaches_the_process_and_its_end_is_seen(sleeper: subprocess.Popen[bytes]) -> None:
    mine = identity(sleeper)

    assert mine.signal(signal.SIGKILL)
    assert mine.wait_gone(10)
    assert sleeper.wait() == -signal.SIGKILL


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    mine = identity(sleeper)
    sleeper.kill()  # not reaped yet

    assert mine.wait_gone(10)
    assert Identity.of(sleeper.pid) is None


def test_waiting_for_a_living_process_ends_in_time(sleeper: subprocess.Popen[bytes]) -> None:
    assert not identity(sleeper).wait_gone(0.05)
