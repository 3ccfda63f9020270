"""The wheel: every module is in it, and it runs in an empty environment without PySpark."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tests.packaging.environments import build_wheel, find_uv, run
from tests.packaging.test_architecture import modules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(root: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(root, python, tmp_path_factory.mktemp("wheel"))


def install(root: Path, wheel: Path, python: str, target: Path, extra: str = "") -> Path:
    """Make an environment that holds nothing but the wheel and what it asks for; return its bin folder."""
    uv = find_uv()
    assert run(uv, "venv", "--quiet", "--python", python, str(target)).returncode == 0
    interpreter = str(target / "bin" / "python")
    lock = str(root / "requirements.lock")
    wanted = f"holdfast{extra} @ {wheel.as_uri()}"
    done = run(
        uv, "pip", "install", "--offline", "--quiet", "--python", interpreter, "--constraint", lock, wanted
    )
    assert done.returncode == 0, done.stderr
    return target / "bin"


def test_the_wheel_holds_every_module_and_the_broker_settings(root: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    expected = set()
    for name, path in modules(root):
        stem = name.replace(".", "/")
        expected.add(f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}.py")
    shipped = {f"holdfast/deploy/kafka/{path.name}" for path in (root / "deploy" / "kafka").iterdir()}
    assert {name for name in names if name.endswith(".py")} == expected
    assert {*shipped, "holdfast/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_line_runs_from_the_wheel(root: Path, wheel: Path, python: str, tmp_path: Path) -> None:
    programs = install(root, wheel, python, tmp_path / "env", "[cli]")

    helped = run(str(programs / "holdfast"), "--help", cwd=tmp_path)

    assert helped.returncode == 0, helped.stderr
    assert "dev" in helped.stdout
    absent = run(str(programs / "python"), "-c", "import pyspark", cwd=tmp_path)
    assert "No module named 'pyspark'" in absent.stderr


def test_without_the_extra_one_line_says_what_to_install(
    root: Path, wheel: Path, python: str, tmp_path: Path
) -> None:
    programs = install(root, wheel, python, tmp_path / "env")

    bare = run(str(programs / "holdfast"), "--help", cwd=tmp_path)

    assert (bare.returncode, bare.stdout) == (1, "")
    assert bare.stderr == "holdfast: the command line needs an extra: pip install 'holdfast[cli]'\n"
    public = "from holdfast import Handler, Output, Record, Service, Table"
    assert run(str(programs / "python"), "-c", public, cwd=tmp_path).returncode == 0
