"""Throw-away trees and environments for the packaging tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def copy_tree(root: Path, target: Path) -> Path:
    """Copy what a commit of the working tree would hold."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file() or (root / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)
    return target


def find_uv() -> str:
    """Return the uv that script/bootstrap used."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statehold"
    found = shutil.which("uv") or str(cache / "uv" / "bin" / "uv")
    if not Path(found).exists():
        pytest.skip("no uv here: script/bootstrap brings it")
    return found


def run(*command: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said; the test judges the exit code."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        stdin=subprocess.DEVNULL,
    )


def build_wheel(root: Path, python: str, scratch: Path) -> Path:
    """Build the wheel of the working tree from a copy, so that no build folder is left in the tree."""
    tree = copy_tree(root, scratch / "tree")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(scratch)]
    done = run(python, "-m", "pip", "wheel", *options, str(tree))
    assert done.returncode == 0, done.stderr
    (wheel,) = scratch.glob("statehold-*.whl")
    return wheel
