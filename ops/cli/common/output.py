"""Prints text for people and JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statehold.common.visible import visible
from statehold.errors import UsageError
from statehold.ops.cli.common.yaml import yaml_lines

_form = "table"
_LAST_CONTROL: Final = re.compile("[\x7f-\x9f]")


class WrongOption(UsageError):
    """The command line is wrong: exit code 2."""


def choose(form: str | None) -> None:
    """Set the form of the output, which `-o` names."""
    global _form  # noqa: PLW0603 - a process runs one command
    _form = form or "table"


def _is_for_programs(value: bool) -> bool:
    if value:
        choose("json")
    return _form in ("json", "yaml")


AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.", callback=_is_for_programs)]


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a JSON document to standard output, or YAML with `-o yaml`; a Struct becomes an object."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)
    if _form == "yaml":
        text = "---\n" + "\n".join(yaml_lines(json.loads(text)))
    # JSON escapes the first 32 control characters; the others occur in its texts only
    sys.stdout.write(_LAST_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows, without interpreting markup in a user's data. No cell is shortened.

    In a pipe, and with `-o wide`, each row is one line. A terminal that is too narrow folds long cells; if even that
    does not fit, each row becomes a block with a line for each cell.
    """
    cells = [[_cell(each) for each in row] for row in rows]
    wide = [max([cell_len(head), *map(_width, column)]) for head, *column in _columns(columns, cells)]
    console = Console(highlight=False)
    if not sys.stdout.isatty() or _form == "wide":
        console = Console(highlight=False, width=_needed(wide, _LOOSE))
    loose = _needed(wide, _LOOSE) <= console.width
    fitting = wide if loose else _fitted(wide, columns, cells, console.width)
    if fitting is None:
        _print_blocks(console, columns, cells)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=loose, collapse_padding=not loose)
    for head, width in zip(columns, fitting, strict=True):
        table.add_column(head, width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


#: characters between two columns of a table with air, and of one that hardly fits
_LOOSE: Final = 3
_TIGHT: Final = 2
#: a cell is folded into lines of this width at least
_FOLDED: Final = 20


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return Text(visible(value.plain), value.style)
    return Text(visible(compact(value)))


def _columns(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> Iterator[tuple[Any, ...]]:
    return zip(columns, *cells, strict=True)


def _width(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split("\n")))


def _needed(widths: Sequence[int], gap: int) -> int:
    """Return the width of the whole table; one with air has an edge, too."""
    return sum(widths) + gap * (len(widths) - 1) + (2 if gap == _LOOSE else 0)


def _fitted(
    wide: Sequence[int], columns: Sequence[str], cells: Sequence[Sequence[Text]], available: int
) -> list[int] | None:
    """Return widths that fit, because headings break between words and long cells anywhere; None if none do."""
    least = [
        max(max(map(cell_len, head.split()), default=1), min(max(map(_width, column), default=1), _FOLDED))
        for head, *column in _columns(columns, cells)
    ]
    left = available - _needed(least, _TIGHT)
    if left < 0:
        return None
    for i in sorted(range(len(least)), key=lambda i: wide[i] - least[i]):  # short cells stay whole first
        more = min(wide[i] - least[i], left)
        least[i], left = least[i] + more, left - more
    return least


def _print_blocks(console: Console, columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
    names = max(map(cell_len, columns))
    for row in cells:
        console.print()
        for head, cell in zip(columns, row, strict=True):
            console.print(Text(f"{head:{names}}  ").append(cell), soft_wrap=True)


def report(line: str) -> None:
    """Print one line to standard output."""
    Console(highlight=False, soft_wrap=True).print(Text(visible(line)))


def complain(line: str) -> None:
    """Print one line about an error to standard error."""
    sys.stderr.write(f"statehold: {visible(line)}\n")


def compact(value: Any) -> str:
    """Format a value for a cell: text unchanged, '-' for None, anything else as JSON."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def moment(milliseconds: int) -> str:
    """Format milliseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)
