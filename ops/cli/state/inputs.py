"""`statehold state inputs`: changes the inputs of a stopped service (docs/how-to/state/change-inputs.md)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from statehold.admin.inputs import change as changing
from statehold.admin.inputs.report import ChangedInputs, InputResult, PartitionResult
from statehold.admin.inputs.requested import request_of
from statehold.bound.attributes import sinks_of
from statehold.bound.topics import class_of
from statehold.ops.cli.common import output
from statehold.ops.cli.state.acting import SHOWN, StateChange, with_change
from statehold.ops.reports.sinks import require_level


@with_change
def inputs(
    change: StateChange,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="TOPIC=POSITION",
            help="Read this topic, too, from beginning, end, a time or an offset; for each partition "
            "TOPIC:P=POSITION,... May be repeated.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Read this topic no more. May be repeated."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW", help="Continue at the first record of NEW, at the place of OLD, which has ended."
        ),
    ] = None,
    reorder: Annotated[
        bool, typer.Option("--reorder", help="Confirm that the code has the inputs in another order.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Never process the unread records of the inputs that --remove names.")
    ] = False,
    quiet: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Watch inputs that end for producers at least this long.")
    ] = 5.0,
) -> None:
    """Change the inputs of a stopped service to those of the code; its state stays. Each difference needs its option.

    statehold state inputs order_totals.app:service \\
        --add corrections=beginning --why "ticket 8" --dry-run

    Without --yes it changes nothing and shows what each input would continue with, and what is never processed.

    Exit code 0: changed, or shown; 1: rejected, and nothing was changed.
    """
    settings, service = change.settings, change.service
    request = request_of(add or (), remove or (), rename or (), reorder=reorder, discard=discard)
    act = change.acts()
    has_sinks = bool(sinks_of(class_of(service.handler)))
    compare_sinks = partial(require_level, settings, "change the inputs", "the service with the former code")
    done = changing.change(
        settings,
        service.names,
        service.handler,
        request,
        change.reason(changing.TOOL),
        quiet=quiet,
        dry_run=not act,
        compare_sinks=compare_sinks if has_sinks else None,
    )
    if change.as_json:
        output.print_json(done)
        return
    columns = ("partition", "input", "", "offset before", "after", "unread", "")
    output.print_table(columns, [_row(partition, each) for partition in done.partitions for each in partition.inputs])
    for line in _lines(done):
        output.report(line)
    output.report(f"changed, state generation {done.lineage}" if act else SHOWN)
    if act and has_sinks:
        output.report(
            f"before the next start, set the position in the database: statehold sink init {change.target} --adopt"
        )


def _row(partition: PartitionResult, each: InputResult) -> tuple[object, ...]:
    what = f"instead of {each.former}" if each.former else "" if each.what == "kept" else each.what
    notes = []
    if each.what == "removed" and (each.unread or each.gone):
        notes.append("never processed")
    if each.gone:
        notes.append(f"{each.gone} offsets deleted before")
    if each.older:
        notes.append(f"{each.older} offsets older than the partition's time")
    unread = f"{each.unread} or more" if each.more else each.unread
    return partition.partition, each.topic, what, each.old_position, each.position, unread, "; ".join(notes)


def _lines(done: ChangedInputs) -> list[str]:
    """Return what the table does not say."""
    keys = sum(each.keys for each in done.partitions)
    lines = [f"{keys} keys; digest of all {done.digest}"]
    resolved = sum(each.resolved for each in done.partitions)
    if resolved:
        lines[0] += f", {done.old_digest} before: without {resolved} entries about resolved dead letters"
    else:
        lines[0] += ", as before"
    joins = [each for partition in done.partitions for each in partition.joins]
    for table in dict.fromkeys(each.table for each in joins):
        left = sum(each.left for each in joins if each.table == table)
        right = sum(each.right for each in joins if each.table == table)
        lines.append(f"{table}: {left} left and {right} right rows stay until their time is over")
    lost = done.total("removed", "unread")
    if lost:
        lines.append(f"{lost} unread records of removed inputs are never processed")
    if done.moved:
        lines.append(f"statehold's topics get the name of {done.after[0]}; those of {done.before[0]} are closed")
    return lines
