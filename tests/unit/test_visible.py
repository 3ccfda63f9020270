"""Data of records and of other processes cannot control the terminal on which a command prints it."""

from __future__ import annotations

import json

import pytest
from rich.text import Text

from statehold.common.visible import visible
from statehold.ops.cli.common import output

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\x7f"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\x9b31m\x7f"


def test_control_characters_become_visible() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("Zürich\n\tété → 東京") == "Zürich\n\tété → 東京"


def test_nothing_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["key"], [[EVIL], [Text("\x1b[31mred", "red")]])
    output.report(EVIL)
    output.complain(EVIL)
    printed = capsys.readouterr()

    assert printed.out.count(SHOWN) == 2
    assert r" \x1b[31mred " in printed.out
    assert printed.err == f"statehold: {SHOWN}\n"
    assert "\x1b" not in printed.out


def test_json_escapes_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"key": EVIL})
    printed = capsys.readouterr().out

    assert json.loads(printed) == {"key": EVIL}
    assert not [each for each in printed.rstrip() if not each.isprintable()]
