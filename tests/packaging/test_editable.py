"""The editable install shows every module, to Python and to mypy, also one that was added a moment ago."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from tests.packaging.environments import copy_tree, run
from tests.packaging.test_architecture import FOLDERS, modules

pytestmark = pytest.mark.slow


def test_python_finds_every_module(root: Path) -> None:
    for name, path in modules(root):
        found = importlib.util.find_spec(name)
        assert found is not None, name
        assert found.origin is not None
        assert Path(found.origin).resolve() == path.resolve()


def test_mypy_checks_a_new_file_in_every_package_and_one_that_it_does_not_see_is_counted(
    root: Path, python: str, tmp_path: Path
) -> None:
    """One wrong line in a new file of each package: as many complaints, or mypy is blind."""
    tree = copy_tree(root, tmp_path)
    for folder in (*FOLDERS, "core/dev", "core/kafka", "ops/cli", "tests", "examples", "script"):
        (tree / folder / "brand_new.py").write_text('wrong: int = "not a number"\n')
    links = tree / "build" / "__editable__.copy" / "statehold"
    links.mkdir(parents=True)
    assert run(python, "script/link_packages.py", cwd=tree).returncode == 0
    (tree / "core" / "not_linked.py").write_text("fine = 1\n")

    told = run(python, "-c", "import check; print(check.types())", cwd=tree, PYTHONPATH=str(tree / "script"))

    assert told.stdout.count("brand_new.py:") == len(FOLDERS) + 6, told.stdout + told.stderr
    there = len(_sources(tree))
    assert f"mypy looked at {there - 1} of {there} files" in told.stdout
    assert told.stdout.startswith("(1, ")


def _sources(tree: Path) -> list[Path]:
    folders = (*FOLDERS, "tests", "examples", "benchmarks", "script")
    return [path for folder in folders for path in (tree / folder).rglob("*.py")]


def test_links_are_refreshed_and_stay(root: Path, python: str, tmp_path: Path) -> None:
    tree = copy_tree(root, tmp_path)
    links = tree / "build" / "__editable__.copy" / "statehold"
    (links / "worker").mkdir(parents=True)  # what setuptools leaves: folders of links to files
    (links / "gone.py").symlink_to(tree / "core" / "gone.py")

    assert run(python, "script/link_packages.py", cwd=tree).returncode == 0
    before = {path.name: os.readlink(path) for path in links.iterdir()}
    assert run(python, "script/link_packages.py", cwd=tree).returncode == 0

    assert {path.name: os.readlink(path) for path in links.iterdir()} == before
    assert Path(before["worker"]) == tree / "worker"
    assert "gone.py" not in before
    assert {"__init__.py", "py.typed", "dev", "kafka", "config", "ops", "deploy"} <= set(before)
