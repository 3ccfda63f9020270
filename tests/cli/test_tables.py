"""A table loses no data: not on a narrow terminal, not in a pipe."""

from __future__ import annotations

import io
import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands import Commands
from tests.support.terminal import on_terminal

from statehold.ops.cli.common import output


class Stream(io.StringIO):
    """What a command writes to a terminal, or to a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def printed(columns: Sequence[str], rows: list[list[str]], width: int, *, terminal: bool) -> str:
    stream = Stream(terminal=terminal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "dumb")
        output.print_table(columns, rows)
    return stream.getvalue()


#: the lengths of a row's cells; each cell consists of a letter of its own
lengths = st.lists(st.integers(1, 90), min_size=1, max_size=12)
letters = string.ascii_uppercase


@given(lengths, st.integers(40, 250))
def test_no_width_of_a_terminal_cuts_a_cell(long: list[int], width: int) -> None:
    heads = [f"{i} of many" for i in range(len(long))]
    cells = [letters[i] * each for i, each in enumerate(long)]
    text = printed(heads, [cells], width, terminal=True)

    assert {letter: text.count(letter) for letter in letters[: len(long)]} == dict(zip(letters, long, strict=False))
    assert "…" not in text
    for cell in cells:
        assert len(cell) > 20 or cell in text, "a short cell is never broken"
    for head in heads:
        assert set(head.split()) <= set(text.split())


@given(lengths, st.integers(20, 250))
def test_in_a_pipe_a_row_is_a_line(long: list[int], width: int) -> None:
    cells = [letters[i] * each for i, each in enumerate(long)]
    text = printed([str(i) for i in range(len(long))], [cells, cells], width, terminal=False)

    assert [line.split() for line in text.splitlines()].count(cells) == 2


def test_the_settings_keep_their_origins_on_80_columns(statehold: Commands) -> None:
    (statehold.directory / "my.toml").write_text("[commit]\ninterval = '20ms'\n")
    words = ("config", "show", "-c", "my.toml", "--changed", "--set", "flow.batch=7")
    variable = "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"
    environment = statehold.environment | {variable: "broker-1.example.org:9092,broker-2.example.org:9092"}

    text = on_terminal(statehold.command(*words), 80, environment, statehold.directory)
    assert max(map(len, text.splitlines())) <= 80
    for whole in ("flow.batch", "command line", "my.toml:2"):
        assert whole in text
    heading, *rows = text.strip("\n").splitlines()
    origins = "".join(line[heading.index("from") :].strip() for line in rows)
    assert f"environmentvariable{variable}" in origins.replace(" ", "")

    statehold.environment = environment | {"COLUMNS": "80"}
    (line,) = (each for each in statehold.run(*words).stdout.splitlines() if "bootstrap" in each)
    assert line.split()[1:] == [f"'{environment[variable]}'", "environment", "variable", variable]
