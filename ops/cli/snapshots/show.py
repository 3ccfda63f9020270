"""`statehold snapshot show`: shows the state at a point, by table, and rows of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.common.exit_codes import Answer
from statehold.errors import UsageError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.snapshots.listing import brief
from statehold.snapshot.inspect import summaries

Point = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="POINT",
        help="latest, an input offset, n:TRANSACTION, full:OFFSET of a full snapshot, or a time: 2026-11-21T17:30:00Z.",
    ),
]


@with_subject
def show_(
    about: Subject,
    at: Point = "latest",
    rows: Annotated[int, typer.Option("--rows", min=0, metavar="N", help="Show N rows of each table, too.")] = 0,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Show only this key, with its value.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Show only this table.")] = None,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Show the state at a point in the past or now: tables, keys, bytes, digest, rows.

    statehold snapshot show order_totals.app:service --rows 5

    The state exists at commit records with a delta: a point between two is rounded down,
    and the real position is shown.

    Exit code 0: shown, and its digest is the recorded one; 1: it cannot be rebuilt; 4: --key does not exist.
    """
    state = []
    with topic_view(about.settings, about.names) as view:
        for partition in view.numbers(partitions_of(partitions)):
            found = view.state(partition, at)
            state.append(summaries.of_state(found, partition, about.typed, rows, key, table))
    if table is not None and not any(each["tables"] for each in state):
        raise UsageError(f"there is no table {table!r} in {about.names.group}")
    if as_json:
        output.print_json(state)
    else:
        for each in state:
            _print(each, rows > 0 or key is not None)
    if key is not None and not any(each["rows"] for each in state):
        output.complain(f"{key!r} is in no table at {at}. Next: run `statehold snapshot history {key}`")
        raise typer.Exit(Answer.DIFFERENT)


def _print(state: dict[str, Any], with_rows: bool) -> None:
    base = "the beginning" if state["full"] is None else f"full@{state['full']}"
    output.report(
        f"partition {state['partition']}: position {state['position']}, transaction {state['n']}, "
        f"{brief(state['age'])} old, from {base} and {state['deltas']} deltas"
    )
    output.report(f"{state['keys']} keys, {state['bytes']} bytes, digest {state['digest']} as recorded")
    tables = [(name, each["keys"], each["bytes"]) for name, each in state["tables"].items()]
    output.print_table(("table", "keys", "bytes"), tables)
    if with_rows:
        print_rows(state["rows"], ("table", "key", "value"))


def print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows with JSON in their cells."""
    output.print_table(columns, [[row[column] for column in columns] for row in rows])
