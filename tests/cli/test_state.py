"""`statehold state` reports a wrong command in one line, before it touches anything."""

from __future__ import annotations

import pytest
from tests.cli.commands import APP, Commands

pytestmark = pytest.mark.slow

KEEPING = APP.replace("Output, Record", "Output, Record, Table").replace(
    "    echo = ", "    pairs = Table(key=tuple[str, int], value=int)\n    echo = "
)
FIXES = """
def halve(key, old):
    return old // 2
"""


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (
            ["migrate", "--why", "x"],
            "nothing to do: give --table TABLE=MODULE:FUNCTION, --drop TABLE, --patch FILE, or ",
        ),
        (["migrate", "--why", "x", "--table", "pairs=fixes:double"], "fixes:double: there is no such function"),
        (["migrate", "--why", "x", "--handlers", "raising:split"], "raising:split: the module raised KeyError: 'gone'"),
        (["migrate", "--why", "x", "--handlers", "fixes:halve"], "halve takes (old, new): annotate `old` with a"),
        (["migrate", "--why", "x", "--table", "pair=fixes:halve"], "no table 'pair'; there are: pairs"),
        (["repartition", "--to", "3", "--why", "x", "--partitioner", "fixes"], "fixes: there is no such function"),
        (["inputs", "--why", "x", "--add", "quotes"], "--add quotes: write quotes=beginning, quotes=end"),
    ],
)
def test_a_wrong_command_is_rejected_in_one_line(statehold: Commands, options: list[str], reported: str) -> None:
    statehold.write_app(KEEPING)
    (statehold.directory / "fixes.py").write_text(FIXES)
    (statehold.directory / "raising.py").write_text("raise KeyError('gone')")
    done = statehold.run("state", options[0], "app:service", *options[1:])
    assert (done.returncode, done.stdout) == (2 if "nothing to do" in reported else 1, "")
    assert reported in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_spool_is_of_one_process(statehold: Commands) -> None:
    statehold.write_app(KEEPING)
    spread = ["--spool-dir", ".", "--spark-master", "local[2]"]
    done = statehold.run("rebuild", "app:service", "--from", "beginning", "--why", "x", *spread)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--spool-dir is for the states of one process; with --spark-master they are on the snapshot" in done.stderr
