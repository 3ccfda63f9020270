"""Build wheel, sdist and site of the last commit. The wheel is built from the sdist, so the sdist is complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from statehold.common.version import __version__

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "release"
_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def complaints(tag: str, changelog: str) -> list[str]:
    """Return why this tag cannot be released; empty if it can."""
    found = [] if tag == f"v{__version__}" else [f"the tag is {tag}, and the version is {__version__}"]
    if f"\n## {tag.removeprefix('v')}" not in changelog:
        found.append(f"CHANGELOG.md has no section {tag.removeprefix('v')}")
    return found


def packages(tree: Path, target: Path) -> tuple[Path, Path]:
    """Build the sdist of a tree without other files, and the wheel of the sdist; return both."""
    _run(sys.executable, "-c", _SDIST, str(target), cwd=tree)
    (sdist,) = target.glob("statehold-*.tar.gz")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    _run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(target), str(sdist), cwd=target)
    (wheel,) = target.glob("statehold-*.whl")
    return sdist, wheel


def site(tree: Path, target: Path) -> Path:
    """Build the site; a warning is an error."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html", "-d", str(tree / "build" / "doctrees")]
    _run(sys.executable, "-m", "sphinx", *options, str(tree / "docs"), str(target / "site"), cwd=tree)
    return target / "site"


def _run(*command: str, cwd: Path) -> None:
    """Run a command; show what it printed only if it fails."""
    done = subprocess.run(command, cwd=cwd, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nrelease: {' '.join(command)} ended with code {done.returncode}")


def main(arguments: list[str]) -> int:
    """Build all into build/release."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for complaint in [each for tag in arguments for each in complaints(tag, changelog)]:
        print(f"release: {complaint}", file=sys.stderr)
        return 1
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", scratch], input=archive, check=True)
        built = [*packages(Path(scratch), TARGET), site(Path(scratch), TARGET)]
    for each in built:
        print(each.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
