"""Keep the editable install complete: `build/__editable__*/statehold` shows every module at once.

A strict editable install links each file as it was at install time, so a module added later does not exist.
This replaces the links to files by links to folders; only a new file directly in core/ needs another run.
Every script and the test suite run it; it takes milliseconds, changes nothing when nothing is new, and may
run twice at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wanted_links() -> dict[str, Path]:
    """Return name inside the package -> file or folder of the tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    core = ROOT / folders["statehold"]
    links = {entry.name: entry for entry in core.iterdir() if _is_source(entry)}
    links |= {name.removeprefix("statehold."): ROOT / path for name, path in folders.items() if "." in name}
    return links


def _is_source(entry: Path) -> bool:
    return entry.name != "__pycache__" and (entry.is_dir() or entry.suffix in (".py", ".pyi", ".typed"))


def refresh(package: Path) -> int:
    """Make `package` show exactly the wanted links; return how many were changed."""
    wanted = wanted_links()
    changed = 0
    for entry in package.iterdir():
        if entry.name not in wanted and entry.name != "__pycache__":
            _remove(entry)
            changed += 1
    for name, target in wanted.items():
        link = package / name
        if link.is_symlink() and Path(os.readlink(link)) == target:
            continue
        if link.is_dir() and not link.is_symlink():
            shutil.rmtree(link)
        fresh = package / f".{name}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)  # atomic: whoever imports meanwhile sees the old or the new
        changed += 1
    return changed


def _remove(entry: Path) -> None:
    if entry.name.startswith("."):
        return  # another run is about to rename it
    with contextlib.suppress(FileNotFoundError):
        entry.unlink() if entry.is_symlink() or entry.is_file() else shutil.rmtree(entry)


def main() -> None:
    """Refresh every editable install of this tree."""
    for package in (ROOT / "build").glob("__editable__*/statehold"):
        refresh(package)


if __name__ == "__main__":
    main()
