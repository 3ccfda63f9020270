"""Prints text for people and JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from statehold.common.visible import visible, visible_time
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
    from statehold.ops.cli.common.tables import print_rows  # here, because it imports rich

    print_rows(columns, rows, compact, one_line=_form == "wide")


def report(line: str) -> None:
    """Print one line to standard output."""
    sys.stdout.write(visible(line) + "\n")


def complain(line: str) -> None:
    """Print one line about an error to standard error."""
    sys.stderr.write(f"statehold: {visible(line)}\n")


def compact(value: Any) -> str:
    """Format a value for a cell: text unchanged, '-' for None, anything else as JSON."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def moment(milliseconds: int) -> str:
    """Format milliseconds since 1970 as a time in UTC. They may be any number, because producers set timestamps."""
    return visible_time(milliseconds)


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)
