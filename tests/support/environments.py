"""Throw-away trees and environments for the packaging tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


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


def closure(wanted: str, others: Iterable[str] = ()) -> set[str]:
    """Return the normalised names of what `statehold` with that extra, and others, need, by what is installed here."""
    found: set[str] = {*others}
    open_ends = [("statehold", wanted), *((name, "") for name in others)]
    while open_ends:
        name, extra = open_ends.pop()
        for line in requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                key = canonicalize_name(needed.name)
                open_ends += [] if key in found else [(key, each) for each in (needed.extras or {""})]
                found.add(key)
    return found


def install(root: Path, wheel: Path, python: str, target: Path, extra: str = "", others: Iterable[str] = ()) -> Path:
    """Make an environment that holds nothing but the wheel, others, and what they ask for; return its bin folder.

    From the lock and uv's cache alone: the second run of script/test must not need a network.
    """
    uv = find_uv()
    assert run(uv, "venv", "--quiet", "--python", python, str(target)).returncode == 0
    names = closure(extra, others)
    blocks = re.split(r"\n(?=\S)", (root / "requirements.lock").read_text(encoding="utf-8"))
    subset = target / "subset.lock"
    subset.write_text("\n".join(block for block in blocks if block.split("==")[0] in names) + "\n")
    options = ["--offline", "--no-deps", "--quiet", "--python", str(target / "bin" / "python")]
    for what in (["--require-hashes", "-r", str(subset)], [str(wheel)]):
        done = run(uv, "pip", "install", *options, *what)
        assert done.returncode == 0, done.stderr
    complete = run(uv, "pip", "check", "--python", str(target / "bin" / "python"))
    assert complete.returncode == 0, complete.stderr
    return target / "bin"
