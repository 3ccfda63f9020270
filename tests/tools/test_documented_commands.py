"""docs/how-to/state/snapshots.md: every command on it is one that the program knows, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statehold.ops.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "state" / "snapshots.md"
COMMANDS = re.findall(r"(?:^\$ |`)statehold ((?:snapshot|cat|prove)[^`\n>]*)", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_command_can_be_given(command: str) -> None:
    done = CliRunner().invoke(app, [*shlex.split(command), "--help"])
    assert done.exit_code == 0, done.output


def test_there_are_commands_on_the_page() -> None:
    shown = {" ".join(command.split()[:2]) for command in COMMANDS}
    assert {f"snapshot {each}" for each in ("list", "show", "verify", "diff", "history")} <= shown
