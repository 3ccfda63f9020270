"""`statehold snapshot diff A B` and `statehold snapshot history KEY`: show changes of the state."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.common.exit_codes import Answer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.snapshots.show import print_rows
from statehold.snapshot.inspect import summaries

_POINT = "latest, an input offset, n:TRANSACTION, full:OFFSET of a full snapshot, or a time."


@with_subject
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The older point: {_POINT}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The newer point.")],
    about: Subject,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Show at most N keys; count all.")] = 100,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Show the keys that were added, changed and removed between two points.

    statehold snapshot diff n:0 latest order_totals.app:service

    Exit code 0: they are equal; 1: an error; 4: they differ.
    """
    differences = []
    with topic_view(about.settings, about.names) as view:
        for partition in view.numbers(partitions_of(partitions)):
            old, new = (view.state(partition, each) for each in (a, b))
            differences.append(summaries.of_difference(partition, old, new, about.typed, limit))
    if as_json:
        output.print_json(differences)
    else:
        for each in differences:
            _print(each)
    different = any(each["added"] + each["changed"] + each["removed"] for each in differences)
    raise typer.Exit(Answer.DIFFERENT if different else Answer.YES)


def _print(difference: dict[str, Any]) -> None:
    a, b = difference["a"], difference["b"]
    output.report(
        f"partition {difference['partition']}: position {a['position']} (transaction {a['n']}, {a['keys']} keys) to "
        f"{b['position']} ({b['n']}, {b['keys']} keys): {difference['added']} added, {difference['changed']} changed, "
        f"{difference['removed']} removed"
    )
    if difference["keys"]:
        print_rows(difference["keys"], ("what", "table", "key", "old", "new"))
    left = difference["added"] + difference["changed"] + difference["removed"] - len(difference["keys"])
    if left:
        output.report(f"and {left} more; --limit shows them")


@with_subject
def history(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key; JSON for a number or a tuple: 17, '[\"a\", 3]'.")],
    about: Subject,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Search only this table.")] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, metavar="N", help="Show only the last N changes. [default: all]")
    ] = 0,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Show each stored change of a key: when, by which process, the old and the new value.

    statehold snapshot history ann order_totals.app:service

    It reaches back to the oldest full snapshot whose deltas are stored.

    Exit code 0: found; 1: an error; 4: no stored delta wrote it.
    """
    rows: list[dict[str, Any]] = []
    with topic_view(about.settings, about.names) as view:
        for partition in view.numbers(partitions_of(partitions)):
            changes = view.history(partition, key, table)[-last:]
            rows += [summaries.of_change(partition, each, about.typed) for each in changes]
    rows = [each | {"at": output.moment(each["time"])} for each in rows]
    if as_json:
        output.print_json(rows)
    elif rows:
        print_rows(rows, ("partition", "position", "n", "at", "writer", "table", "key", "old", "new"))
    if not rows:
        where = f"table {table}" if table else "any table"
        output.complain(f"no stored delta wrote {key!r} in {where}. Next: run `statehold snapshot show --key {key}`")
        raise typer.Exit(Answer.DIFFERENT)
