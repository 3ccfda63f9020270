"""Prints text for people and JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(value: Any) -> None:
    """Print a JSON document to standard output; a Struct becomes an object."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")


def print_table(
    columns: Iterable[str | Column],
    rows: Iterable[Sequence[object]],
    *,
    fold: bool = False,
    pad_edge: bool = False,
    width: int | None = None,
) -> None:
    """Print rows, without interpreting markup in a user's data; `fold` wraps cells instead of shortening them."""
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=pad_edge)
    for row in rows:
        cells = [each if isinstance(each, Text) else Text(compact(each)) for each in row]
        for cell in cells:
            cell.overflow = "fold" if fold else cell.overflow
        table.add_row(*cells)
    Console(highlight=False, width=width).print(table)


def tell(line: str) -> None:
    """Print one line to standard output."""
    Console(highlight=False, soft_wrap=True).print(Text(line))


def complain(line: str) -> None:
    """Print one line about an error to standard error."""
    sys.stderr.write(f"statehold: {line}\n")


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
