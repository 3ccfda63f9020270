"""How commands print: tables for people, JSON for programs."""

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
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, default=str, ensure_ascii=False) + "\n")


def tell(line: str) -> None:
    """One line for people on standard output."""
    Console(highlight=False, soft_wrap=True).print(Text(line))


def complain(line: str) -> None:
    """One line about what is wrong on standard error."""
    sys.stderr.write(f"statehold: {line}\n")


def compact(value: Any) -> str:
    """A value in a cell: text as it is, '-' for nothing, anything else as JSON."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def moment(milliseconds: int) -> str:
    """Milliseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
