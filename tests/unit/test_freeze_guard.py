"""The guard of a frozen interpreter: what it rejects, and that it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from structlog.testing import capture_logs

from statehold import FreezeGuard
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.health.freeze_guard import EXIT_CODE
from statehold.ops.cli.service.run import _ends_when_frozen


def test_it_leaves_the_signal_as_it_was_and_may_be_used_again() -> None:
    for _ in range(2):
        with FreezeGuard(3600) as guard:
            assert guard.works
            assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_second_one_and_another_handler_are_rejected() -> None:
    with FreezeGuard(3600), pytest.raises(UsageError, match="another FreezeGuard"):
        FreezeGuard(3600).__enter__()
    signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with pytest.raises(UsageError, match="handler of SIGALRM"):
            FreezeGuard(3600).__enter__()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_less_than_two_seconds_and_another_thread_are_rejected() -> None:
    with pytest.raises(UsageError, match="the shortest time is 2 s"):
        FreezeGuard(1)
    heard: list[str] = []

    def enter() -> None:
        try:
            FreezeGuard(3600).__enter__()
        except UsageError as error:
            heard.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in heard[0]


def test_a_system_without_a_timer_leaves_the_signal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreezeGuard, "_timer", no_timer)
    with pytest.raises(OSError, match="no timer"):
        FreezeGuard(3600).__enter__()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_service_runs_without_a_guard_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreezeGuard, "_timer", no_timer)
    with capture_logs() as log, _ends_when_frozen(Settings()):
        pass
    assert [(each["event"], each["cause"]) for each in log] == [("freeze_unguarded", "no timer")]


def no_timer(*_: object) -> None:
    raise OSError("no timer")


def test_work_that_lets_other_threads_run_is_not_ended() -> None:
    code = (
        "import time; from statehold import FreezeGuard\n"
        "with FreezeGuard(2):\n end = time.monotonic() + 4\n while time.monotonic() < end: sum(range(1000))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stacks_of_all_threads_and_an_exit_code_of_its_own() -> None:
    code = (
        "import ctypes, threading, time; from statehold import FreezeGuard\n"
        "def keeps_the_lock():\n ctypes.PyDLL(None).sleep(60)\n"
        "with FreezeGuard(2):\n threading.Thread(target=keeps_the_lock).start()\n time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE, done.stderr
    assert "in keeps_the_lock" in done.stderr
    assert done.stderr.count("Thread 0x") + done.stderr.count("thread 0x") >= 3
