"""The README's examples are what a reader pastes first: each Python block is run as it stands."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from examples.clearing.app import Clearing

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_python_block_runs_and_its_tests_pass(number: int) -> None:
    names: dict[str, Any] = {"__name__": f"readme_{number}"}
    exec(compile(blocks("python")[number], f"README.md, Python block {number}", "exec"), names)  # noqa: S102
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


def test_the_quoted_handler_is_the_one_that_runs() -> None:
    assert inspect.getsource(Clearing).strip() in blocks("python")[0]


def test_the_quoted_commands_exist() -> None:
    for command in re.findall(r"script/\w+", "".join(blocks("sh"))):
        assert (README.parent / command).exists(), command


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
