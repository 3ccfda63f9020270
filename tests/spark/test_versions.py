"""Compaction, export and Spark tables on the oldest and newest PySpark of pyproject.toml; the lock has one between."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.environments import find_uv

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
FILES = ("test_session.py", "test_export.py", "test_compact.py", "test_pure.py", "test_tables.py")


def requirement() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (found,) = (each for each in extras["spark"] if each.startswith("pyspark"))
    return str(found)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command for up to 50 minutes."""
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=3000
    )


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"], ids=["oldest", "newest"])
def test_compaction_export_and_tables_run_on(resolution: str, tmp_path: Path) -> None:
    target = tmp_path / "pyspark"
    install = ("pip", "install", "--quiet", "--no-deps", "--resolution", resolution, "--target", str(target))
    done = run(find_uv(), *install, "--python", sys.executable, requirement())
    if done.returncode != 0 and os.environ.get("CI") != "true":
        pytest.skip(f"PySpark cannot be downloaded: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    files = [f"tests/spark/{name}" for name in FILES]
    options = ("-q", "-n0", "-p", "no:cacheprovider")
    tests = run(*(sys.executable, "-m", "pytest", *options, *files), PYTHONPATH=str(target))
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-1000:]
    version = run(sys.executable, "-c", "import pyspark; print(pyspark.__version__)", PYTHONPATH=str(target)).stdout
    assert version.strip() in {path.name.split("-")[1].removesuffix(".dist") for path in target.glob("pyspark-*")}
