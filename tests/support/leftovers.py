"""No process outlives its test run, and none that a failed test started outlives that test: a plugin of pytest.

The environment of a process names its run and, as PYTEST_CURRENT_TEST, the test that started it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Generator

import pytest
from tests.support import started

MARK = "STATEHOLD_TEST_RUN"
_FAILED = pytest.StashKey[bool]()
_REAPER = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the reaper: it kills what this run started once the run has ended, even by os._exit or SIGKILL."""
    os.environ.pop(MARK, None)  # of the run that this one is a part of
    commit_record = uuid.uuid4().hex
    command = [sys.executable, "-P", "-S", started.__file__, f"{MARK}={commit_record}"]
    config.stash[_REAPER] = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = commit_record


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait for the reaper."""
    reaper = config.stash[_REAPER]
    reaper.communicate(timeout=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """After the fixtures of a failed test, kill what its body started."""
    try:
        return (yield)
    finally:
        if item.stash.get(_FAILED, False):
            run = f"{MARK}={os.environ[MARK]}"  # the same test of another run may still be running
            started.kill_started_with(run, f"PYTEST_CURRENT_TEST={item.nodeid} (call)")
