"""Shell scripts: each program, module and file that they start exists, and Python is in modules that mypy reads."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from script import check, packages

from statehold.dev.java import find_spark_java

ROOT = Path(__file__).parents[2]
SCRIPTS = check.shell_scripts()
#: a program for `python -c`, or one that a page's shell block gives to `python -`
ONE_LINER = re.compile(r""" -c (?:'([^']*)'|"([^"]*)")""")
HEREDOC = re.compile(r"python3? - <<'?(\w+)'?\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("ops/**/*.in")]
)


def test_every_shell_script_is_checked() -> None:
    assert {".ci/run", "deploy/stateholdctl", "script/bootstrap", "script/demo", "script/test"} <= set(SCRIPTS)


def test_shellcheck_finds_a_fault(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text('#!/bin/sh\ncd "$1"\nrm -r $2\n', encoding="utf-8")

    code, found = check.run("shellcheck", str(tmp_path / "bad"))

    assert code != 0
    assert "SC2086" in found


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_starts_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for module in re.findall(r"python\"? -m ([\w.]+)", text):
        assert importlib.util.find_spec(module), f"{name}: python -m {module}"
    for path in re.findall(r"(?<![\w/.])script/[\w.]+", text):
        assert (ROOT / path).is_file(), f"{name}: {path}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_in_a_script_uses_the_standard_library_alone(name: str) -> None:
    for single, double in ONE_LINER.findall((ROOT / name).read_text(encoding="utf-8")):
        assert not double, f"{name}: write it in single quotes, because the shell changes it: {double}"
        assert imported(single) <= sys.stdlib_module_names, f"{name}: move it to a module: {single}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_a_page_s_shell_imports_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    programs = [single or double for single, double in ONE_LINER.findall(text)]
    for program in [*programs, *(body for _, body in HEREDOC.findall(text))]:
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                absent = [each.name for each in node.names if not hasattr(module, each.name)]
                assert not absent, f"{node.module} has no {absent}"
            elif isinstance(node, ast.Import):
                assert all(importlib.util.find_spec(each.name) for each in node.names), program


def imported(program: str) -> set[str]:
    """Return the top-level modules that this program imports."""
    found = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
    return found


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A system without Java, with an apt-get that records its calls here."""
    programs, log = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    log.touch()
    stub(programs / "apt-get", f'echo "$@" >>{log}')
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    find_spark_java.cache_clear()
    yield log
    find_spark_java.cache_clear()


def stub(path: Path, body: str) -> None:
    """Write a program for a PATH that has no other."""
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def test_root_on_debian_installs_a_java(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    packages.main(["java"])

    wait = "-o DPkg::Lock::Timeout=120"
    assert calls.read_text() == f"{wait} update\n{wait} install -y --no-install-recommends default-jre-headless\n"


def test_a_java_that_is_there_is_left(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(calls.parent / "bin" / "java", "echo 'openjdk version \"21.0.2\"' >&2")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    packages.main(["java"])

    assert calls.read_text() == ""


def test_a_user_reads_the_command(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    packages.main(["java"])

    assert calls.read_text() == ""
    assert "the tests of Spark are skipped. To run them: sudo apt-get install default-jre-headless" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        (["-q"], ["chromium", "prometheus", "postgresql"]),
        (["tests/ops", "tests/kafka/test_seek.py"], ["chromium", "prometheus", "postgresql"]),
        (["-q", "tests/kafka/test_seek.py", "tests/docs/test_tutorial.py"], []),
        (["tests/docs/test_site.py::test_every_link_and_picture_is_there"], ["chromium"]),
        (["tests/monitoring/test_live.py", "tests/sinks/test_session.py"], ["prometheus", "postgresql"]),
    ],
    ids=["all", "a folder", "neither", "one test", "two files"],
)
def test_a_run_of_some_files_installs_what_they_use(arguments: list[str], used: list[str]) -> None:
    assert packages.used_by(arguments) == used


def test_a_test_that_is_skipped_without_a_program_is_found_by_its_word(root: Path) -> None:
    helpers = {"chromium": "support.browser", "prometheus": "support.prometheus", "postgresql": "sinks.server"}
    for file in (root / "tests").rglob("test_*.py"):
        found = packages.used_by([str(file.relative_to(root))])
        for program, helper in helpers.items():
            if f"from {'examples' if 'sinks' in helper else 'tests'}.{helper} import" in file.read_text(
                encoding="utf-8"
            ):
                assert program in found, file


def test_another_system_reads_what_to_install(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (calls.parent / "bin" / "apt-get").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    packages.main(["java", "chromium"])

    assert "install a complete Java 17 or newer" in capsys.readouterr().err


def test_a_failed_install_says_why_and_what_is_skipped(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(calls.parent / "bin" / "apt-get", "echo 'E: no network'; exit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    packages.main(["java"])

    printed = capsys.readouterr().err
    assert "E: no network" in printed
    assert "the tests of Spark are skipped" in printed
