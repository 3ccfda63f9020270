"""README: its Python runs, its quick start runs on a real broker, and it stays one page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.docs.test_pages import run
from tests.support.readme import BLOCKS, README, quick_start


def test_it_is_one_page() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 125


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("totals", "README.md", BLOCKS, monkeypatch) == 1


@pytest.mark.kafka
def test_the_quick_start_runs_as_shown(tmp_path: Path) -> None:
    quick_start(tmp_path, Path(sys.executable).parent)
