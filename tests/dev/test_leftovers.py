"""What a test leaves running is killed: when the test fails, and when the run ends in any way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.processes import await_true
from tests.support.started import started_with

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system has no /proc"),
]
START = """
import os, subprocess, sys, time
from tests.support.started import started_with

def start():  # a grandchild in a session of its own, as a service of a killed demo is
    command = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", command], env={**os.environ, "LEFT": "%s"}, check=True)
    deadline = time.monotonic() + 60
    while not started_with("LEFT=%s"):  # a process that has just begun may have no environment yet
        assert time.monotonic() < deadline
"""
A_FAILURE = """
def test_one():
    start()
    assert False

def test_two():
    assert started_with("LEFT=%s") == []
"""
AN_ABRUPT_END = """
def test_one():
    start()
    os._exit(7)  # as pytest-timeout does
"""
A_SUCCESS = """
def test_one():
    start()
"""


def run_pytest(root: Path, python: str, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text((START + program).replace("%s", str(folder)))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.leftovers", "test_it.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_same_test_of_another_run_continues(root: Path, python: str, tmp_path: Path) -> None:
    """A test of another run has the same name, so its processes have the same PYTEST_CURRENT_TEST."""
    other = {**os.environ, "PYTEST_CURRENT_TEST": "test_it.py::test_one (call)"}
    with subprocess.Popen(["sleep", "600"], env=other) as process:
        try:
            assert run_pytest(root, python, tmp_path, A_FAILURE).returncode == 1
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("program", "code", "outcome"),
    [(A_FAILURE, 1, "1 failed, 1 passed"), (AN_ABRUPT_END, 7, ""), (A_SUCCESS, 0, "1 passed")],
)
def test_no_process_is_left(root: Path, python: str, tmp_path: Path, program: str, code: int, outcome: str) -> None:
    done = run_pytest(root, python, tmp_path, program)

    assert done.returncode == code, done.stdout
    assert outcome in done.stdout
    await_true(lambda: started_with(f"LEFT={tmp_path}") == [], "the end of what the test started", 30)
