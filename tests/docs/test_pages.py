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
#: each of its blocks is a module of its own
RECIPES = "how-to/write/recipes.md"
#: their blocks are files, which test_tutorial.py and test_how_to.py run with the commands of the page
PROGRAMS = [
    "tutorial/answer.md",
    "tutorial/audit.md",
    "tutorial/build.md",
    "how-to/operate/embed.md",
    "how-to/operate/scale.md",
    "how-to/operate/several-services.md",
]
PAGES = [
    page
    for page in sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    if "```python" in (DOCS / page).read_text() and page not in (RECIPES, *PROGRAMS)
]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def run(name: str, page: str, code: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run these blocks as one module, then its tests; return the number of tests."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(code):
        exec(compile(block, f"docs/{page}, block {number}", "exec", dont_inherit=True), vars(module))  # noqa: S102
    tests = [function for name, function in vars(module).items() if name.startswith("test_")]
    alone = [function for function in tests if not inspect.signature(function).parameters]
    for function in alone:
        function()
    return len(alone)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("docs_" + re.sub(r"\W", "_", page.removesuffix(".md")), page, blocks(page, "python"), monkeypatch)


@pytest.mark.parametrize("number", range(len(blocks(RECIPES, "python"))))
def test_a_recipe_runs_by_itself(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(f"recipe_{number}", RECIPES, [blocks(RECIPES, "python")[number]], monkeypatch) == 1


def test_each_recipe_has_one_block() -> None:
    text = (DOCS / RECIPES).read_text()
    assert text.count("\n## ") == len(blocks(RECIPES, "python"))


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_is_markdown_that_github_renders(page: Path) -> None:
    """A block that begins with `:caption:` cannot be pasted, and a directive is shown as code."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^(?:```\{.*|:::.*|:\w+:.*|\{\w+\}`.*)$", text, re.MULTILINE) == []
