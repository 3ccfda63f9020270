"""Prints tables on a terminal or in a pipe. Imported when a table is printed, because rich takes 0.1 s."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statehold.common.visible import visible


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], shown: Callable[[object], str], *, one_line: bool
) -> None:
    """Print rows; see `output.print_table`. `shown` returns a value's text; with `one_line` no cell is folded."""
    cells = [[_cell(each, shown) for each in row] for row in rows]
    wide = [max([cell_len(head), *map(_width, column)]) for head, *column in _columns(columns, cells)]
    console = Console(highlight=False)
    if not sys.stdout.isatty() or one_line:
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


def _cell(value: object, shown: Callable[[object], str]) -> Text:
    if isinstance(value, Text):
        return Text(visible(value.plain), value.style)
    return Text(visible(shown(value)))


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
