"""The demo as a newcomer runs it, and as one who loses patience: either way nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from examples.running import ROOT, wait_until
from tests.support.started import started_with

from statehold.dev.process import command_of

pytestmark = pytest.mark.kafka


@contextmanager
def demo(folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The demo with all its temporary files in `folder` and its account in `folder`.txt."""
    folder.mkdir()
    with folder.with_suffix(".txt").open("wb") as account:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.clearing.demo", *options],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=account,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def output_of(folder: Path) -> str:
    return folder.with_suffix(".txt").read_text()


def left_by(folder: Path) -> list[str]:
    """Files of this demo that remain, and processes that it started and that still live."""
    return [*map(str, folder.iterdir()), *map(command_of, started_with(f"TMPDIR={folder}"))]


@pytest.mark.long
def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--records", "30000") as process:
        assert process.wait(300) == 0, output_of(folder)
    lines = output_of(folder).splitlines()
    assert lines[-1] == "demo ok"
    assert any("restored from the compaction's full snapshots" in line for line in lines)
    assert any(line.startswith("0 lost, 0 duplicated, digests equal in 4 of 4") for line in lines)
    assert left_by(folder) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_end_in_the_middle_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        wait_until(lambda: "kill -9" in output_of(folder) or process.poll() is not None, "the kill", 90.0)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert "demo ok" not in output_of(folder)
    assert "the end of alpha's log" in output_of(folder)
    assert left_by(folder) == []


@pytest.mark.long
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        wait_until(lambda: "kill -9" in output_of(folder) or process.poll() is not None, "the kill", 90.0)
        process.kill()
        process.wait(30)
    wait_until(lambda: started_with(f"TMPDIR={folder}") == [], "the end of what it started", 30.0)
