"""A stream of changes that is killed and continues: each change is in the table once, whatever died when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.changes import BUSY, counted, stored_changes
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


class Following:
    """The program as a process group of its own, so that a kill takes its Java, too."""

    def __init__(self, stage: Stage) -> None:
        self.service = f"tests.support.apps.named:{stage.names.service}/{stage.names.input}/{stage.output}"
        self.directory, self.log = stage.directory / "lake", stage.directory / "following.log"
        command = [sys.executable, "-m", "tests.support.apps.following", self.service, stage.servers]
        self._command = [*command, str(self.directory)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def finish(self) -> list[dict[str, Any]]:
        """Run until it has all changes; return the rows of the table."""
        command = [*self._command, "once"]
        while True:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900, env=self._environment()
            )
            if done.returncode == 0 or BUSY not in done.stderr:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line.removeprefix("row ") for line in done.stdout.splitlines() if line.startswith("row ")]
        return [msgspec.json.decode(line) for line in lines]

    def await_batches(self, count: int) -> None:
        """Wait until Spark has noted this number of batches."""
        await_true(lambda: self._alive() and len(self.batches) >= count, f"{count} batches", 900)

    def _alive(self) -> bool:
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            log = self.log.read_text()
            assert BUSY in log, log[-3000:]
            self.log.unlink()
            self.start()
        return True

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    @property
    def batches(self) -> list[Path]:
        """The batches that Spark has noted as done."""
        found = (self.directory / "checkpoint" / "commits").glob("[0-9]*")
        return sorted(found, key=lambda path: int(path.name))


@pytest.fixture
def following(staged: Stage) -> Iterator[Following]:
    found = Following(staged)
    yield found
    found.kill()


@pytest.mark.long
def test_a_killed_stream_continues_without_duplicate_or_loss(staged: Stage, following: Following) -> None:
    with Local(staged, STATEHOLD_COMMIT__MAX_RECORDS="50", STATEHOLD_SNAPSHOT__KEEP="9"):
        staged.feed(300, keys=50)
        staged.await_all()
        following.start()
        following.await_batches(1)
        staged.feed(300, keys=50)
        staged.await_all()
        following.await_batches(2)
        staged.feed(300, keys=50)
        following.kill()
        staged.await_all()
    # As if the kill had come after the sink took the batch, and before Spark noted it: Spark repeats the batch.
    last = following.batches[-1]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    rows = following.finish()

    assert counted(rows) == stored_changes(staged, following.service)
    assert {row["kind"] for row in rows} == {"put"}
