"""`statehold snapshot diff A B` and `statehold snapshot history KEY`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from statehold.common.exit_codes import Answer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.state.snapshot_show import print_rows
from statehold.ops.reports.topic_access import looking, point_of
from statehold.snapshot.inspect import compare, past, typed
from statehold.snapshot.inspect.compare import Change, Difference
from statehold.snapshot.inspect.past import PastState
from statehold.snapshot.inspect.typed import Typed

_POINT = "latest, a position, n:TRANSACTION, full:OFFSET or a time."


@with_subject
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The older point: {_POINT}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The newer one.")],
    about: Subject,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Show so many keys; count all.")] = 100,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Show which keys were added, changed and removed between two fulls or positions.

    statehold snapshot diff n:0 latest examples.clearing.app:service

    Exit code 0: they are equal; 1: an error; 4: they differ.
    """
    told = []
    with looking(about.settings, about.names) as view:
        for place in view.places(partitions_of(partitions)):
            old, new = (past.at(view.reader, place, point_of(view, place.partition, each)) for each in (a, b))
            told.append(_compared(place.partition, old, new, about.typed, limit))
    if as_json:
        output.print_json(told)
    else:
        for each in told:
            _print(each)
    different = any(each["added"] + each["changed"] + each["removed"] for each in told)
    raise typer.Exit(Answer.DIFFERENT if different else Answer.YES)


def _compared(partition: int, old: PastState, new: PastState, types: Typed, limit: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for each in compare.differences(old.contents, new.contents):
        counts[each.what] += 1
        if len(rows) < limit:
            rows.append(_row(each, types))
    return {
        "partition": partition,
        "a": {"position": old.position, "n": old.n, "keys": old.contents.keys},
        "b": {"position": new.position, "n": new.n, "keys": new.contents.keys},
        **{what: counts[what] for what in ("added", "changed", "removed")},
        "keys": rows,
    }


def _row(each: Difference, types: Typed) -> dict[str, Any]:
    return {
        "what": each.what,
        "table": each.table,
        "key": typed.key(each.key),
        "old": types.value(each.table, each.old),
        "new": types.value(each.table, each.new),
    }


def _print(told: dict[str, Any]) -> None:
    a, b = told["a"], told["b"]
    output.tell(
        f"partition {told['partition']}: position {a['position']} (transaction {a['n']}, {a['keys']} keys) to "
        f"{b['position']} ({b['n']}, {b['keys']} keys): {told['added']} added, {told['changed']} changed, "
        f"{told['removed']} removed"
    )
    if told["keys"]:
        print_rows(told["keys"], ("what", "table", "key", "old", "new"))
    left = told["added"] + told["changed"] + told["removed"] - len(told["keys"])
    if left:
        output.tell(f"and {left} more; --limit shows them")


@with_subject
def history(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key; JSON for a number or a tuple: 17, '[\"a\", 3]'.")],
    about: Subject,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Only in this table.")] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, metavar="N", help="Only the last N changes. [default: all]")
    ] = 0,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Show each kept delta that wrote a key: when, by whom, what it was and what it became.

    statehold snapshot history ALPHA examples.clearing.app:service

    It reaches back as far as increments are kept, to the oldest kept full.

    Exit code 0: found; 1: an error; 4: no kept delta wrote it.
    """
    told: list[dict[str, Any]] = []
    with looking(about.settings, about.names) as view:
        for place in view.places(partitions_of(partitions)):
            changes = list(compare.history(view.reader, place, compare.readings(key), table))
            told += [_change(place.partition, each, about.typed) for each in changes[-last:]]
    if as_json:
        output.print_json(told)
    elif told:
        print_rows(told, ("partition", "position", "n", "at", "writer", "table", "old", "new"))
    if not told:
        where = f"table {table}" if table else "any table"
        output.complain(
            f"no kept delta wrote {key!r} in {where}; `statehold snapshot show --key {key}` tells whether it is there"
        )
        raise typer.Exit(Answer.DIFFERENT)


def _change(partition: int, each: Change, types: Typed) -> dict[str, Any]:
    return {
        "partition": partition,
        "position": each.position,
        "start": each.start,
        "n": each.n,
        "time": each.time,
        "at": output.moment(each.time),
        "writer": each.writer,
        "table": each.table,
        "old": types.value(each.table, each.old) if each.old_known else "not kept",
        "old_known": each.old_known,
        "new": types.value(each.table, each.new),
    }
