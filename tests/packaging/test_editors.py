"""An editor finds definitions and uses through the links in src/statehold, in a clone without an environment, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jedi
import pytest
from tests.support.environments import copy_tree, run
from tests.support.language_server import LanguageServer
from tests.support.processes import await_true

pytestmark = pytest.mark.slow

HOME = "src/statehold/worker"


def users_of(root: Path, name: str) -> set[Path]:
    """Every tracked Python file that names a class, by the text alone."""
    listed = subprocess.run(
        ["git", "grep", "-lw", name, "--", "*.py"], cwd=root, capture_output=True, text=True, check=True
    )
    return {(root / line).resolve() for line in listed.stdout.split()} - {Path(__file__).resolve()}


def tracked(root: Path) -> set[Path]:
    """Every file of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    return {(root / line).resolve() for line in listed.stdout.splitlines()}


@pytest.fixture(scope="module")
def clone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree as git has it, without an environment."""
    return copy_tree(root, tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def pyright() -> list[str]:
    return [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"]


def test_pyright_goes_to_the_tracked_file_and_finds_every_use(root: Path, clone: Path, pyright: list[str]) -> None:
    wanted = {path.relative_to(root) for path in users_of(root, "Mailbox")}
    with LanguageServer(pyright, clone) as server:
        (home,) = server.definition(f"{HOME}/partition.py", "return Mailbox(tools", 7)
        # It reads the tree on a thread of its own, and answers with what it has read.
        await_true(lambda: files_that_use_it(server, clone) >= wanted, f"it finds {sorted(wanted)}", 120)
        used = files_that_use_it(server, clone)

    assert home.resolve().relative_to(clone) == Path("worker/common/mailbox.py")
    assert used == wanted
    assert len(wanted) > 3


def files_that_use_it(server: LanguageServer, clone: Path) -> set[Path]:
    found = server.references(f"{HOME}/common/mailbox.py", "class Mailbox", 6)
    return {path.resolve().relative_to(clone) for path in found}


def test_jedi_goes_to_the_tracked_file_and_finds_every_use(root: Path, clone: Path) -> None:
    project = jedi.Project(clone, sys_path=[str(clone / "src"), str(clone)])

    script = jedi.Script(path=clone / HOME / "partition.py", project=project)
    (home,) = script.goto(*place(clone / "worker/partition.py", "Mailbox(tools"), follow_imports=True)
    script = jedi.Script(path=clone / HOME / "common/mailbox.py", project=project)
    used = script.get_references(*place(clone / "worker/common/mailbox.py", "Mailbox:"))

    here = {clone / path.relative_to(root) for path in tracked(root)}
    assert home.module_path.resolve() in here
    assert home.module_path.resolve() == clone / "worker/common/mailbox.py"
    wanted = {clone / path.relative_to(root) for path in users_of(root, "Mailbox")}
    assert {each.module_path.resolve() for each in used} == wanted


def place(path: Path, text: str) -> tuple[int, int]:
    """Line, from 1, and column, from 0, of the first occurrence."""
    before = path.read_text(encoding="utf-8").split(text)[0]
    return before.count("\n") + 1, len(before) - before.rfind("\n") - 1


@pytest.mark.long
def test_pyright_resolves_every_import_without_an_environment(clone: Path) -> None:
    settings = clone / "pyrightconfig.json"
    folders = ["", "balancer", "config", "ops", "snapshot", "worker"]
    settings.write_text(
        json.dumps(
            {
                "include": [f"src/statehold/{folder}" for folder in folders] + ["tests", "examples", "benchmarks"],
                "extraPaths": ["src"],
                "typeCheckingMode": "off",
                "reportMissingImports": "error",
            }
        )
    )
    program = str(Path(sys.executable).with_name("basedpyright"))
    done = run(program, "--outputjson", "--pythonpath", "/usr/bin/python3", cwd=clone)
    reported = json.loads(done.stdout)
    first_party = ("statehold", "tests", "examples", "benchmarks")
    unresolved = [
        each["message"]
        for each in reported["generalDiagnostics"]
        if each["message"].startswith(tuple(f'Import "{name}' for name in first_party))
    ]
    assert reported["summary"]["filesAnalyzed"] > 700
    assert unresolved == []
