"""The site builds without a warning: every link leads somewhere, every page is in the menu."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path, python: str) -> None:
    command = [python, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    command += ["-d", str(tmp_path / "doctrees"), "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=os.environ)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n(a new page needs its line in docs/index.md)"
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")}
    docs = ROOT / "docs"
    assert {page.relative_to(docs).with_suffix(".html").as_posix() for page in docs.rglob("*.md")} <= pages
