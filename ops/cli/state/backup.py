"""`statehold snapshot backup | restore`: copies state and input to files and back (docs/how-to/state/backup.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statehold.admin.backup import backup as saving
from statehold.admin.backup import restore as restoring
from statehold.admin.state import position_args
from statehold.bound.topics import output_topics
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.state.acting import SHOWN, StateChange, with_change


@with_subject
def backup(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Write to this new directory.")],
    about: Subject,
    with_input: Annotated[
        bool, typer.Option("--with-input", help="Back up the inputs, too, from the oldest needed position on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up a service's state to files, and verify it from them. The service may be running.

    statehold snapshot backup order_totals.app:service \\
        --with-input --to backups/today

    Exit code 0: written, read back and verified; 1: failed, and manifest.json is missing.
    """
    made = saving.backup(about.settings, about.names, about.outputs(), to, with_input=with_input)
    if as_json:
        output.print_json(made)
        return
    rows = []
    for each in made.partitions:
        files = [file for file in made.files if file.partition == each.partition]
        sizes = sum(file.bytes for file in files)
        rows.append((each.partition, each.position, each.oldest, each.keys, each.digest[:12], len(files), sizes))
    columns = ("partition", "position", "back to", "keys", "digest", "files", "bytes")
    output.print_table(columns, rows)
    output.report(f"backup {made.backup} in {to}: proven. Now copy it to another place")
    if not with_input:
        output.report("without the input: a restore needs --input-at, the position in another input")


@with_change
def restore(
    change: StateChange,
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Read this directory of `snapshot backup`.")],
    to_offset: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET",
            help="Restore the newest state at or before this position of the old input: 1200, or 0=1200,1=900. "
            "[default: the newest]",
        ),
    ] = None,
    at_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Restore the newest state whose commit record Kafka had appended by then."),
    ] = None,
    input_at: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Continue in an existing input at an offset (1200, or 0=1200,1=900; with several inputs "
            "TOPIC:0=1200,OTHER:0=900), a time, beginning, or same, where a mirror kept the offsets.",
        ),
    ] = None,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Accept that the outputs already hold records and those after the cut-off are duplicated.",
        ),
    ] = False,
    replication: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Create topics with this many replicas. [default: the brokers' default]"),
    ] = 0,
) -> None:
    """Restore a stopped service onto a cluster where its topics are missing or never held a record.

    statehold snapshot restore order_totals.app:service \\
        --from backups/today --why "cluster lost" --dry-run

    Without --yes it verifies the backup and the topics, shows the state, and changes nothing.

    Exit code 0: restored, the service may start, or shown; 1: rejected, and nothing was changed.
    """
    act, service = change.acts(), change.service
    done = restoring.restore(
        change.settings,
        service.names,
        service.handler,
        output_topics(service.handler, service.names),
        source,
        change.reason(restoring.TOOL),
        cut=position_args.positions_of(to_offset) if to_offset else None,
        at_time=at_time,
        input_at=input_at,
        accept_duplicates=accept_duplicates,
        replication=replication,
        dry_run=not act,
    )
    if change.as_json:
        output.print_json(done)
        return
    rows = [
        (each.partition, each.old_position, each.position, each.records, each.keys, each.digest[:12])
        for each in done.partitions
    ]
    columns = ("partition", "position before", "now", "records", "keys", "digest")
    output.print_table(columns, rows)
    if not act:
        output.report(SHOWN)
        return
    output.report(
        f"restored, state generation {done.lineage}. Next: start the service, which continues at these positions"
    )
    if done.offsets:
        output.report(f"old offset -> new offset: {done.offsets}")
