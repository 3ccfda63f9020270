"""Each page that a newcomer reads first installs statehold in a way that works on a system with nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/install.md", "docs/tutorial/index.md"]


def first_installation(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "pip install" in block)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_makes_an_environment_before_it_installs(page: str) -> None:
    """Because Debian's Python is managed externally, and has no pip at first."""
    made, found, installed = first_installation(page).partition("pip install")
    assert found
    assert "python3 -m venv" in made
    assert "/bin/activate" in made
    assert installed.startswith(" '.[dev]'"), "statehold is not on the package index yet"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/index.md"])
def test_the_reader_works_next_to_the_clone(page: str) -> None:
    """Because pytest in a folder of the clone reads the clone's settings, and rejects them without their plugins."""
    folders = re.findall(r"-m venv (\S+)/env .*cd (\S+)", first_installation(page), re.DOTALL)
    assert folders
    assert all(one == other and one.startswith("../") for one, other in folders)


def test_the_wheel_that_a_page_installs_is_the_one_that_it_builds() -> None:
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    (folder,) = re.findall(r"pip wheel .*-w (\S+)", text)
    assert re.findall(r"pip install '([^']*)/statehold-[^']*\.whl", text) == [f"./{folder}"]
