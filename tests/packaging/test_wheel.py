"""The wheel: every module is in it, and it runs in an empty environment without PySpark."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from tests.support.environments import install, run
from tests.support.readme import BLOCKS, quick_start
from tests.support.sources import modules

pytestmark = pytest.mark.slow
#: imports the module of each command, which `--help` does not
EVERY_COMMAND = """
from typer.main import get_command
from statehold.ops.cli.lazy_commands import loaded
from statehold.ops.cli.main import app
assert len([loaded(command) for command in get_command(app).commands.values()]) > 20
"""


def test_the_wheel_holds_every_module_and_the_broker_settings(root: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    expected = set()
    for name, path in modules(root):
        stem = name.replace(".", "/")
        expected.add(f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}.py")
    shipped = {f"statehold/deploy/kafka/{path.name}" for path in (root / "deploy" / "kafka").iterdir()}
    assert {name for name in names if name.endswith(".py")} == expected
    shipped |= {"statehold/deploy/stateholdctl", "statehold/deploy/grafana/statehold.json"}
    shipped |= {"statehold/deploy/prometheus/statehold.rules.yml"}
    texts = {path.name for path in (root / "ops" / "explain" / "texts").iterdir()}
    assert len(texts) > 10
    shipped |= {f"statehold/ops/explain/texts/{name}" for name in texts}
    assert {*shipped, "statehold/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_line_runs_from_the_wheel(root: Path, wheel: Path, python: str, tmp_path: Path) -> None:
    programs = install(root, wheel, python, tmp_path / "env", "cli")

    helped = run(str(programs / "statehold"), "--help", cwd=tmp_path)

    assert helped.returncode == 0, helped.stderr
    assert "dev" in helped.stdout
    imported = run(str(programs / "python"), "-c", EVERY_COMMAND, cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    absent = run(str(programs / "python"), "-c", "import pyspark", cwd=tmp_path)
    assert "No module named 'pyspark'" in absent.stderr


def test_without_the_extra_one_line_says_what_to_install(root: Path, wheel: Path, python: str, tmp_path: Path) -> None:
    programs = install(root, wheel, python, tmp_path / "env")

    bare = run(str(programs / "statehold"), "--help", cwd=tmp_path)

    assert (bare.returncode, bare.stdout) == (1, "")
    assert bare.stderr == "statehold: the command line needs an extra: pip install 'statehold[cli]'\n"
    public = "from statehold import Handler, Output, Record, Service, Table"
    assert run(str(programs / "python"), "-c", public, cwd=tmp_path).returncode == 0
    settings = "import sys; from statehold.config import load; load(); assert 'pydantic' not in sys.modules"
    assert run(str(programs / "python"), "-c", settings, cwd=tmp_path).returncode == 0


@pytest.mark.long
@pytest.mark.kafka
def test_the_example_runs_from_the_wheel(root: Path, wheel: Path, python: str, tmp_path: Path) -> None:
    programs = install(root, wheel, python, tmp_path / "env", "cli")
    shutil.copytree(root / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))

    demo = [str(programs / "python"), "-m", "examples.clearing.demo", "--records", "40000"]
    reported = run(*demo, cwd=tmp_path)

    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert reported.stdout.splitlines()[-1] == "demo ok"


@pytest.mark.long
@pytest.mark.kafka
def test_the_quick_start_runs_from_the_wheel(root: Path, wheel: Path, python: str, tmp_path: Path) -> None:
    """As a stranger pastes it: an environment with the wheel and pytest alone, and a directory without the clone."""
    programs = install(root, wheel, python, tmp_path / "env", "dev", ["pytest"])
    directory = tmp_path / "stranger"
    directory.mkdir()

    quick_start(directory, programs)

    (directory / "test_totals.py").write_text(BLOCKS[1], encoding="utf-8")
    tested = run(str(programs / "pytest"), "-q", "test_totals.py", cwd=directory)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout
