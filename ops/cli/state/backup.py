"""`statehold snapshot backup | restore`: a service's state, and its input, to files and back (docs/backup.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from statehold.admin.backup import backup as saving
from statehold.admin.backup import restore as restoring
from statehold.admin.state import position_args
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.messages.command import issuer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_settings, with_subject
from statehold.ops.cli.common.target import Who, Why, outputs_of, service_of
from statehold.snapshot.state_replacement import ReplacementReason


@with_subject
def backup(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new directory.")],
    about: Subject,
    with_input: Annotated[
        bool, typer.Option("--with-input", help="Also the input, from the oldest kept position on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy all that is kept of a service's state into files, and prove it from them. The service may be running.

    statehold snapshot backup examples.clearing.app:service \\
        --with-input --to backups/today

    Exit code 0: written, read back and proven; 1: not, and there is no manifest.json.
    """
    made = saving.backup(about.settings, about.names, about.outputs(), to, with_input=with_input)
    if as_json:
        output.print_json(msgspec.to_builtins(made))
        return
    table = Table("partition", "position", "back to", "keys", "digest", "files", "bytes", box=box.SIMPLE_HEAD)
    for each in made.partitions:
        files = [file for file in made.files if file.partition == each.partition]
        sizes = sum(file.bytes for file in files)
        row = (each.partition, each.position, each.oldest, each.keys, each.digest[:12], len(files), sizes)
        table.add_row(*map(str, row))
    Console(highlight=False).print(table)
    output.tell(f"backup {made.backup} in {to}: proven. Now copy it to another place")
    if not with_input:
        output.tell("without the input: a restore must be told where to go on in another one (--input-at)")


@with_settings
def restore(
    settings: Settings,
    target: Annotated[str, typer.Argument(metavar="MODULE:SERVICE", help="The service, with the code that is to run.")],
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="What `snapshot backup` wrote.")],
    why: Why,
    to_offset: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET",
            help="Go back to the newest state at or before this position of the old input: 1200, or 0=1200,1=900. "
            "[default: the newest]",
        ),
    ] = None,
    at_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Go back to the newest state whose mark Kafka had taken in by then."),
    ] = None,
    input_at: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="The input is there already: go on in it at an offset (1200, or 0=1200,1=900), a time, beginning, "
            "or same, where a mirror kept the offsets.",
        ),
    ] = None,
    accept_duplicates: Annotated[
        bool, typer.Option("--accept-duplicates", help="The outputs hold records; those after the cut come again.")
    ] = False,
    replication: Annotated[
        int, typer.Option(min=0, metavar="N", help="Replicas of topics that are created. [default: the brokers']")
    ] = 0,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Restore a stopped service onto a cluster where its topics are missing or never held a record.

    statehold snapshot restore examples.clearing.app:service \\
        --from backups/today --why "cluster lost"

    Exit code 0: adopted, the service may start; 1: refused, and nothing was adopted.
    """
    service = service_of(settings, target)
    done = restoring.restore(
        settings,
        service.names,
        service.handler,
        outputs_of(service),
        source,
        ReplacementReason(tool=f"{restoring.TOOL} {__version__}", who=who or issuer(), why=why),
        cut=position_args.positions_of(to_offset) if to_offset else None,
        at_time=at_time,
        input_at=input_at,
        accept_duplicates=accept_duplicates,
        replication=replication,
    )
    if as_json:
        output.print_json(msgspec.to_builtins(done))
        return
    table = Table("partition", "position before", "now", "records", "keys", "digest", box=box.SIMPLE_HEAD)
    for each in done.partitions:
        row = (each.partition, each.old_position, each.position, each.records, each.keys, each.digest[:12])
        table.add_row(*map(str, row))
    Console(highlight=False).print(table)
    output.tell(f"adopted; the lineage is {done.lineage}. Start the service: it goes on at these positions")
    if done.offsets:
        output.tell(f"old offset -> new offset: {done.offsets}")
