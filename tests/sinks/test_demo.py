"""The example's demo, as a reader runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from examples.sinks.server import missing

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.skipif(missing() != "", reason=missing())
def test_kills_of_workers_and_database_change_no_row(root: Path, python: str) -> None:
    done = subprocess.run(
        [python, "-m", "examples.sinks.demo", "--payments", "4000"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("demo ok\n")
