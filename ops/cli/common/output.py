"""Prints text for people and JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(value: Any) -> None:
    """Print a JSON document to standard output."""
    sys.stdout.write(json.dumps(value, default=str, ensure_ascii=False) + "\n")


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
