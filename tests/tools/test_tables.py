"""The tables of recorded state on 80 columns and in a pipe: nothing in them is shortened."""

from __future__ import annotations

import subprocess

import pytest
from tests.support.terminal import on_terminal
from tests.tools.recorded import Ledger

pytestmark = pytest.mark.kafka


def lines(ledger: Ledger, *words: str) -> list[list[str]]:
    """The words of each line that the command prints into a pipe; the shell says that a line has 80 columns."""
    environment = ledger.shell() | {"COLUMNS": "80"}
    done = subprocess.run(
        ledger.command(*words), cwd=ledger.directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_full_snapshots_keep_their_offsets(ledger: Ledger) -> None:
    words = ("snapshot", "list", ledger.target)
    wanted = {f"full@{full['offset']}" for each in ledger.json(*words) for full in each["full_snapshots"]}
    assert wanted

    assert wanted == {word for line in lines(ledger, *words) for word in line if word.startswith("full@")}
    text = on_terminal(ledger.command(*words), 80, ledger.shell(), ledger.directory)
    assert wanted <= set(text.split())
    assert max(map(len, text.split("a restore takes")[0].splitlines())) <= 80


def test_a_history_names_the_key_and_keeps_times_and_writers(ledger: Ledger) -> None:
    words = ("snapshot", "history", "a25", ledger.target)
    changes = ledger.json(*words)
    rows = [line for line in lines(ledger, *words) if line[:1] == [str(changes[0]["partition"])]]

    assert [each["key"] for each in changes] == ["a25"] * len(rows)
    for row, each in zip(rows, changes, strict=True):
        assert row[1:7] == [str(each["position"]), str(each["n"]), each["at"], each["writer"], each["table"], "a25"]
    text = on_terminal(ledger.command(*words), 80, ledger.shell(), ledger.directory)
    assert {word for each in changes for word in (each["at"], each["writer"], "a25")} <= set(text.split())


def test_lag_keeps_its_offsets(ledger: Ledger) -> None:
    words = ("lag", "--name", ledger.name, "--input", ledger.names.input)
    wanted = [[str(each["partition"]), str(each["position"]), str(each["end"])] for each in ledger.json(*words)]

    rows = [line[:3] for line in lines(ledger, *words) if line[1:2] and line[1].isdecimal()]
    assert rows == wanted
