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


def told(folder: Path) -> str:
    return folder.with_suffix(".txt").read_text()


def left_by(folder: Path) -> list[str]:
    """Processes that were started under this demo and still live, and files that lie about."""
    left = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return left


def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--records", "60000") as process:
        assert process.wait(300) == 0, told(folder)
    lines = told(folder).splitlines()
    assert lines[-1] == "demo ok"
    assert any("restored from the compaction's fulls" in line for line in lines)
    assert any(line.startswith("0 lost, 0 duplicated, digests equal in 4 of 4") for line in lines)
    assert left_by(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_in_the_middle_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        wait_until(lambda: "kill -9" in told(folder) or process.poll() is not None, "the kill", 90.0)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert "demo ok" not in told(folder)
    assert "the end of alpha's log" in told(folder)
    assert left_by(folder) == []
