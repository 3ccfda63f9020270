"""The editable install shows every module, to Python and to mypy, also one that was added a moment ago."""

from __future__ import annotations

import importlib
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.environments import copy_tree, run
from tests.support.sources import FOLDERS, modules

pytestmark = pytest.mark.slow


def test_python_finds_every_module(root: Path) -> None:
    for name, path in modules(root):
        found = importlib.util.find_spec(name)
        assert found is not None, name
        assert found.origin is not None
        assert Path(found.origin).resolve() == path.resolve()


@pytest.mark.long
def test_mypy_checks_a_new_file_in_every_package_and_one_that_it_does_not_see_is_counted(
    root: Path, python: str, tmp_path: Path
) -> None:
    """One wrong line in a new file of each package: as many complaints, or mypy is blind."""
    tree = copy_tree(root, tmp_path)
    with suppress(OSError):  # what was checked before takes mypy no time; another test may be writing a file of it
        shutil.copytree(root / ".mypy_cache", tree / ".mypy_cache")
    for folder in (*FOLDERS, "src/statehold/dev", "src/statehold/kafka", "ops/cli", "tests", "examples", "script"):
        (tree / folder / "brand_new.py").write_text('wrong: int = "not a number"\n')
    (tree / "src" / "statehold" / "snapshot").unlink()  # a link that is missing hides a whole folder

    reported = run(python, "-c", "import check; print(check.types())", cwd=tree, PYTHONPATH=str(tree / "script"))

    assert reported.stdout.count("brand_new.py:") == len(FOLDERS) + 5, reported.stdout + reported.stderr
    there, hidden = len(_sources(tree)), len(list((tree / "snapshot").rglob("*.py")))
    assert f"mypy checked {there - hidden} of {there} files" in reported.stdout
    assert reported.stdout.startswith("(1, ")


def _sources(tree: Path) -> list[Path]:
    folders = (*FOLDERS, "tests", "examples", "benchmarks", "script")
    return [path for folder in folders for path in (tree / folder).rglob("*.py")]
