"""A partition's tables as text, to compare them with a file that a person has reviewed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from statehold.state.partition_table import PartitionTable


def text_of(tables: Iterable[PartitionTable[Any, Any]]) -> str:
    """Return a line for each table, and one for each of its keys, as JSON; sorted, so that equal states are equal."""
    lines = []
    for table in sorted(tables, key=lambda each: each.name):
        rows = [f"  {_json(key)}: {_json(value)}" for key, value in table.items()]
        lines += [f"{table.name}:", *sorted(rows)]
    return "".join(f"{line}\n" for line in lines)


def compare(found: str, path: Path) -> None:
    """Compare with a file. A file that does not exist is written.

    :raises AssertionError: they differ, or the file did not exist.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        raise AssertionError(f"{path} did not exist, and has the state now. Next: read it, add it, run the test again")
    expected = path.read_text(encoding="utf-8")
    if found != expected:
        lines = difflib.unified_diff(
            expected.splitlines(keepends=True), found.splitlines(keepends=True), str(path), "the state now"
        )
        raise AssertionError(f"{''.join(lines)}Next: if the new state is right, delete {path} and run the test again")


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted", enc_hook=repr).decode()
