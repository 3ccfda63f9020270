"""Every table and chart of figures shows docs/figures.json, and the same figure stands wherever it is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from script.generate import figures

PAGES = [figures.ROOT / "README.md", *sorted((figures.ROOT / "docs" / "explanation").glob("*.md"))]
PAGES = [
    page for page in PAGES if page.name != "reliability.md"
]  # its figures are of other runs, with their conditions


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_a_page_shows_the_measured_figures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == figures.filled(text), "run python -m script.generate"


def test_the_chart_shows_the_measured_figures() -> None:
    assert figures.CHART.read_text(encoding="utf-8") == figures.chart(), "run python -m script.generate"


def test_another_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.loads(json.dumps(figures.measured()))
    other["throughput"]["rows"][0]["value"] += 1000
    readme = (figures.ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(figures, "measured", lambda: other)
    assert figures.filled(readme) != readme
    assert figures.chart() != figures.CHART.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_rate_that_prose_names_was_measured(page: Path) -> None:
    named = re.findall(r"(\d{2,3},\d{3}) records/s", page.read_text(encoding="utf-8"))
    measured = figures.measured()
    known = {f"{row['value']:,}" for row in measured["throughput"]["rows"]}
    known |= {
        f"{row[peer]['value']:,}"
        for name in ("join", "window")
        for row in measured[name]["rows"]
        for peer in ("statehold", "streams", "quix")
    }
    assert set(named) <= known
