"""`statehold explain NAME`: what an error, an alert, a log event or an exit code means, and what to do."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.cells import cell_len

from statehold.common.exit_codes import Answer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.explain.entries import Entry, entries
from statehold.ops.explain.lookup import find, nearest
from statehold.ops.explain.text import commands, for_terminal, plain

#: lines of text are at most this wide
_WIDEST: Final = 100
#: of a line of the list, what the two other columns do not need
_LEAST: Final = 20
_EDGES: Final = 8
_SENTENCE: Final = re.compile(r"(?<=[.?]) (?=[A-Z`])")


def _starting_with(incomplete: str) -> list[str]:
    """Return the names of one word that begin like this, for the shell."""
    return [name for name in entries() if name.startswith(incomplete) and " " not in name]


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Name an error, alert, log event or exit code, in any case.  [default: list all]",
            autocompletion=_starting_with,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error, an alert, a log event or an exit code: meaning, what is safe, what to look at, what to do.

    statehold explain RetentionGap

    Without a name it lists all. An exit code is a number: 5.

    Exit code 0: explained; 1: there is no such name, and standard error has the nearest.
    """
    if not words:
        _list(list(entries().values()), as_json)
        return
    name = " ".join(words)
    found = find(name)
    if not found:
        output.complain(_unknown(name))
        raise typer.Exit(Answer.NO)
    if as_json:
        output.print_json([_as_json(each) for each in found])
        return
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    output.report("\n\n".join(for_terminal(each, width) for each in found))


def _unknown(name: str) -> str:
    suggested = nearest(name)
    hint = f"; did you mean {' or '.join(suggested)}?" if suggested else "."
    return f"no error, alert, log event or exit code is called {name!r}{hint} Next: `statehold explain` lists all"


def _list(found: Sequence[Entry], as_json: bool) -> None:
    if as_json:
        output.print_json([_as_json(each) for each in found])
        return
    taken = max(cell_len(each.name) for each in found) + max(cell_len(each.kind) for each in found) + _EDGES
    room = max(shutil.get_terminal_size().columns - taken, _LEAST) if sys.stdout.isatty() else None
    output.print_table(("name", "kind", "meaning"), [(each.name, each.kind, _line(each, room)) for each in found])


def _line(entry: Entry, room: int | None) -> str:
    """Return the first sentence of the meaning; on a terminal, as much as one line holds."""
    sentence = _SENTENCE.split(plain(entry.meaning))[0]
    return sentence if room is None else textwrap.shorten(sentence, room, placeholder="…")


def _as_json(entry: Entry) -> dict[str, Any]:
    return {
        **{key: plain(value) for key, value in msgspec.to_builtins(entry).items()},
        "commands": [*commands(entry.look), *commands(entry.do)],
    }
