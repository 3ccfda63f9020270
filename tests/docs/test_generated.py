"""The generated pages are current."""

from __future__ import annotations

from pathlib import Path

import pytest
from script.generate.__main__ import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_declarations_say(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run python -m script.generate"
    assert str(Path.home()) not in page
