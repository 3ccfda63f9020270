"""Lint, format, types, shell scripts, import directions and words. Every step runs; exit code 0: all passed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("src/statehold", "config", "balancer", "worker", "snapshot", "ops")
PROGRAMS = ("tests", "examples", "benchmarks", "script")


def run(tool: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a tool of this environment; return its exit code and what it printed."""
    program = Path(sys.executable).with_name(tool)
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def source_files() -> list[Path]:
    """Return every Python file that must be checked."""
    return sorted(
        path
        for folder in (*PACKAGES, *PROGRAMS)
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def lint() -> tuple[int, str]:
    """Ruff's rules."""
    return run("ruff", "check", "--quiet", ".")


def layout() -> tuple[int, str]:
    """Ruff's formatter."""
    return run("ruff", "format", "--check", "--quiet", ".")


def types() -> tuple[int, str]:
    """mypy --strict; it also fails when mypy checked fewer files than there are."""
    programs = [folder for folder in PROGRAMS if list((ROOT / folder).rglob("*.py"))]
    code, output = run("mypy", "src/statehold", *programs, MYPYPATH=f"{ROOT / 'src'}:{ROOT}")
    counted = re.search(r"(\d+) source files?", output)
    seen, there = int(counted[1]) if counted else 0, len(source_files())
    if seen != there:
        return 1, f"{output}mypy checked {seen} of {there} files\n"
    return code, output


def shell_scripts() -> list[str]:
    """Return every shell script of the repository, by its first line."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [name for name in filter(None, listed.stdout.split("\0")) if is_shell(ROOT / name)]


def is_shell(path: Path) -> bool:
    """Return whether this file begins as a shell script."""
    if not path.is_file():  # a link to a folder, or removed and not committed
        return False
    with path.open("rb") as file:
        return re.match(rb"#!.*\b(ba|da)?sh\b", file.readline(200)) is not None


def shell() -> tuple[int, str]:
    """Shellcheck on every shell script."""
    return run("shellcheck", *shell_scripts())


def directions() -> tuple[int, str]:
    """Imports point down."""
    return run("pytest", "-q", "--no-header", "-p", "no:cacheprovider", "tests/packaging/test_architecture.py")


def words() -> tuple[int, str]:
    """No banned word in comments, strings and docs."""
    return run("pytest", "-q", "--no-header", "-p", "no:cacheprovider", "tests/packaging/test_words.py")


def main() -> int:
    """Run every step and print one line for each, with the tool's output where it failed."""
    steps: dict[str, Callable[[], tuple[int, str]]] = {
        "ruff check": lint,
        "ruff format": layout,
        "mypy --strict": types,
        "shellcheck": shell,
        "import directions": directions,
        "words": words,
    }
    failed = 0
    for name, step in steps.items():
        started = time.monotonic()
        code, output = step()
        failed += code != 0
        sys.stdout.write(f"{'ok' if code == 0 else 'FAILED':6} {name:18} {time.monotonic() - started:5.1f} s\n")
        if code != 0:
            sys.stdout.write(output)
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
