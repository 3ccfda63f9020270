"""What the pages show is run as it stands: the Python blocks of a page, in order, then the tests among them.

A block that cannot run by itself is fenced as `py`.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [path.name for path in sorted(DOCS.glob("*.md")) if "```python" in path.read_text()]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"docs_{page.removesuffix('.md').replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"docs/{page}, block {number}", "exec", dont_inherit=True), vars(module))  # noqa: S102
    for name, function in list(vars(module).items()):
        if name.startswith("test_") and not inspect.signature(function).parameters:
            function()
