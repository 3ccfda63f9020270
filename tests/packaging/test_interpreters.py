"""Every supported Python that is on this machine runs the product, against the wheel.

Here 3.13 and 3.14 by the tests of a few folders; in script/test --long all by the whole fast tier: also the run's own
Python, whose fast tier is part of the run, 3.12, between the others, and the system's. Debian 12 has 3.11.2, which
lacks what later releases of 3.11 added; a look at the code finds that here.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.environments import find_uv, run

pytestmark = pytest.mark.slow
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM = "/usr/bin/python3"
#: what the default tier runs of the fast one: the whole worker, and what is stored
FOLDERS = ("tests/driver", "tests/golden")
SYSTEM_IS_TESTED = "import sys, venv, ssl; sys.exit(sys.version.split()[0] == %r or sys.version_info < (3, 11))"


def find_interpreter(version: str) -> str | None:
    """Return a Python of that version, on PATH or kept by pyenv (whose shims may refuse to run)."""
    if version == SYSTEM:
        wanted = SYSTEM_IS_TESTED % sys.version.split()[0]
        return SYSTEM if Path(SYSTEM).exists() and run(SYSTEM, "-c", wanted).returncode == 0 else None
    kept = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
        if candidate and run(candidate, "-c", "import venv, ssl").returncode == 0:
            return candidate
    return None


def install_locked(uv: str, interpreter: str, lock: Path) -> None:
    """Install the lock from uv's cache, and by the network only what is not in it yet."""
    command = [uv, "pip", "install", "--no-deps", "--quiet", "--python", interpreter]
    command += ["--require-hashes", "-r", str(lock)]
    if run(*command, "--offline").returncode != 0:
        done = run(*command)
        if done.returncode != 0 and os.environ.get("CI") != "true":
            pytest.skip("the packages for this Python are not in uv's cache, and there is no network")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "version",
    [pytest.param(each, marks=pytest.mark.long) for each in (*SUPPORTED, SYSTEM)],
)
def test_the_fast_tier_passes(
    root: Path, wheel: Path, tmp_path: Path, version: str, pytestconfig: pytest.Config
) -> None:
    uv = find_uv()
    base = find_interpreter(version)
    if base is None:
        pytest.skip(f"no Python {version} here")
    env = tmp_path / "env"
    interpreter = str(env / "bin" / "python")
    assert run(uv, "venv", "--quiet", "--python", base, str(env)).returncode == 0
    install_locked(uv, interpreter, root / "requirements.lock")
    done = run(uv, "pip", "install", "--offline", "--no-deps", "--quiet", "--python", interpreter, str(wheel))
    assert done.returncode == 0, done.stderr

    tree = wheel.parent / "tree"  # the copy that the wheel was built from, without packages in the way
    # A few folders cost less in one process, which rewrites no assertion.
    part = () if pytestconfig.getoption("run_long") else ("-n", "0", "--assert=plain", *FOLDERS)
    tests = run(interpreter, "script/test.py", "--fast", "-q", "-p", "no:cacheprovider", *part, cwd=tree)

    assert tests.returncode == 0, tests.stdout[-3000:] + tests.stderr[-1000:]


#: what the standard library got after 3.11.2 within 3.11: calls with these arguments, and names
LATER_ARGUMENTS = {"extractall": "filter", "extract": "filter", "unpack_archive": "filter", "parseaddr": "strict"}
LATER_NAMES = {"data_filter", "tar_filter", "fully_trusted_filter", "FilterError", "SetReparseDeferralEnabled"}


def later(tree: ast.AST) -> Iterator[str]:
    """Name each use of what Python 3.11.2 does not have, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            argument = LATER_ARGUMENTS.get(node.func.attr)
            if argument in {keyword.arg for keyword in node.keywords} - {None}:
                yield f"{node.lineno}: {node.func.attr}({argument}=...)"
        elif isinstance(node, ast.Attribute) and node.attr in LATER_NAMES:
            yield f"{node.lineno}: {node.attr}"


def test_no_file_needs_more_than_python_3_11_2(root: Path) -> None:
    """Also where the interpreter of Debian 12 is not there to run it."""
    found = [
        f"{path.relative_to(root)}:{use}"
        for path in sorted(root.rglob("*.py"))
        if not {".venv", "build"} & set(path.relative_to(root).parts)
        for use in later(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    assert list(later(ast.parse("tar.extractall(to, filter='data')"))) == ["1: extractall(filter=...)"]


def test_the_supported_versions_are_declared(root: Path) -> None:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert tuple(declared) == SUPPORTED
    assert project["requires-python"] == f">={SUPPORTED[0]}"


def test_the_locks_name_hashes_and_no_host(root: Path) -> None:
    for name in ("requirements.lock", "requirements-spark.lock"):
        text = (root / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert "index-url" not in text
        pinned = [line for line in text.splitlines() if "==" in line]
        assert pinned
        assert text.count("--hash=sha256:") >= len(pinned)
