"""The jobs of examples/lakehouse as programs that are killed: each row is in Delta and in Iceberg once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.spark.changes import BUSY, counted, stored_changes
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage

from statehold import Service
from statehold.dev.jars import cache_root

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"STATEHOLD_COMMIT__MAX_RECORDS": "50", "STATEHOLD_SNAPSHOT__KEEP": "9"}
#: its jar is for the Spark of the lock
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(3600)]


class Release:
    """One release of the service of a stage, which feeds it."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage, self.target = (
            stage,
            f"tests.support.apps.growing:{number}/{stage.names.service}/{stage.names.input}",
        )

    def service(self, **settings: str) -> Service:
        from tests.support.apps import growing

        found: Service = getattr(growing, self.target.partition(":")[2])
        found.settings = self._stage.settings(**settings)
        return found

    def handle(self, count: int) -> str:
        """Have the release commit further records; return the time after it."""
        with Local(self, **SETTINGS):
            self._stage.feed(count, keys=30)
            self._stage.await_all()
        return datetime.now(UTC).isoformat()


class Jobs:
    """The jobs as process groups of their own, so that a kill takes their Java, too."""

    def __init__(self, stage: Stage, form: str) -> None:
        self._stage, self._form, self.directory = stage, form, stage.directory / "lake"
        self._log, self._started = stage.directory / "job.log", list[subprocess.Popen[str]]()
        self._several: subprocess.Popen[str] | None = None

    def start(self, job: str, release: Release, *options: str) -> None:
        """Start a job as a program."""
        self._open(f"examples.lakehouse.{job}", *self._arguments(release, *options))

    def run(self, job: str, release: Release, *options: str) -> str:
        """Run a job to its end, all in one program, because Java takes long to start; return its error."""
        while True:
            said = self._ask(job, *self._arguments(release, *options))
            if BUSY not in said:
                return str(said)

    def rows(self, *tables: str) -> dict[str, list[dict[str, Any]]]:
        """The rows of tables of the lake."""
        return {table: self._ask("rows", self._form, str(self.directory), table) for table in tables}

    def await_file(self, *patterns: str) -> None:
        """Wait until the started job has written a file."""

        def found() -> bool:
            assert self._started[-1].poll() is None, self._log.read_text()[-5000:]
            return any(True for pattern in patterns for _ in self.directory.glob(pattern))

        await_true(found, f"one of {patterns}", 900)

    def kill(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
        self._started, self._several = [], None

    def forget_last_batch(self) -> None:
        """As if a kill had come after the lake took the batch, and before Spark noted it: Spark repeats the batch."""
        notes = (self.directory / "totals_changes.checkpoint" / "commits").glob("[0-9]*")
        last = max(notes, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def _arguments(self, release: Release, *options: str) -> list[str]:
        return [release.target, "totals", "--lake", self._form, "--to", str(self.directory), *options]

    def _ask(self, *words: str) -> Any:
        if self._several is None:
            self._several = self._open("tests.support.apps.lake_jobs")
        assert self._several.stdin is not None
        assert self._several.stdout is not None
        self._several.stdin.write(json.dumps(words) + "\n")
        self._several.stdin.flush()
        for line in self._several.stdout:
            if line.startswith("did "):
                return json.loads(line.removeprefix("did "))
        raise AssertionError(self._log.read_text()[-5000:])

    def _open(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        jars = f"--conf spark.jars.ivy={cache_root() / 'ivy'} --driver-java-options -XX:TieredStopAtLevel=1"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{jars} pyspark-shell",
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": self._stage.servers,
        }
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process


@pytest.fixture(params=["delta", "iceberg"])
def jobs(request: pytest.FixtureRequest, staged: Stage) -> Iterator[Jobs]:
    found = Jobs(staged, request.param)
    yield found
    found.kill()


def state_of(rows: list[dict[str, Any]], day: str) -> dict[tuple[int, str], tuple[Any, ...]]:
    ours = [row for row in rows if row["day"] == day]
    found = {(row["partition"], row["key"]): (row["count"], row["sum"], row.get("last")) for row in ours}
    assert len(found) == len(ours), "a key has one row a day"
    return found


def newest(changes: list[dict[str, Any]], through: int) -> dict[tuple[int, str], tuple[Any, ...]]:
    """The state that the first batches of changes, up to this number of records, lead to."""
    found: dict[tuple[int, str], tuple[Any, ...]] = {}
    for row in sorted(changes, key=lambda row: row["transaction"]):
        if row["after"]["last"] is None or row["after"]["last"] < through:
            found[row["partition"], row["key"]] = tuple(row["after"].values())
    return found


def test_jobs_that_are_killed_leave_each_row_once_and_follow_the_types(jobs: Jobs, staged: Stage) -> None:
    first, second, third = (Release(staged, number) for number in (1, 2, 3))
    first.handle(200)
    jobs.start("streaming", first)
    jobs.await_file("totals_changes.checkpoint/commits/0")
    evening = first.handle(200)
    jobs.await_file("totals_changes.checkpoint/offsets/1")
    jobs.kill()
    nightly = ("--day", "2026-11-26", "--at", evening)
    jobs.start("nightly", first, *nightly)
    jobs.await_file("totals/**/*.parquet", "statehold/totals/**/*.parquet")
    jobs.kill()

    assert jobs.run("streaming", first, "--once") == ""
    for _ in range(2):
        assert jobs.run("nightly", first, *nightly) == ""
    jobs.forget_last_batch()
    night = second.handle(300)
    for job, *options in (["streaming", "--once"], ["nightly", "--at", night]):
        text = jobs.run(job, first, *options)
        assert "holds keys or values of another type than this code declares: last: int is gone" in text
    assert jobs.run("streaming", second, "--once") == ""
    assert jobs.run("nightly", second, "--day", "2026-11-27", "--at", night) == ""
    assert "sum: int became str" in jobs.run("nightly", third, "--at", night)

    found = jobs.rows("totals", "totals_changes")
    changes = found["totals_changes"]
    assert counted(changes) == stored_changes(staged, second.target)
    assert Counter(row["after"]["last"] is None for row in changes)[True] > 100
    assert {row["day"] for row in found["totals"]} == {"2026-11-26", "2026-11-27"}
    assert state_of(found["totals"], "2026-11-26") == newest(changes, 0)
    final = newest(changes, 9999)
    assert state_of(found["totals"], "2026-11-27") == {
        key: (count, total, -1 if last is None else last) for key, (count, total, last) in final.items()
    }
    assert sum(count for count, _, _ in final.values()) == 700
