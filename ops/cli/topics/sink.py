"""`statehold sink init | show`: the database that the sinks of a service write to."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statehold.common.exit_codes import Answer
from statehold.config.settings import Settings
from statehold.ops.cli.common import output as shown
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import with_settings
from statehold.ops.cli.common.target import service_of
from statehold.ops.reports.sinks import Standing, standings

app = typer.Typer(help="The database of a service's sinks.", no_args_is_help=True)

Named = Annotated[str, typer.Argument(metavar="MODULE:SERVICE", help="The service.")]


@app.command("show")
@with_settings
def show(
    settings: Settings,
    target: Named,
    as_json: AsJson = False,
) -> None:
    """Compare what the database holds of each partition with the partition's last mark. Changes nothing.

    statehold sink show examples.sinks.app:service

    Exit code 0: every partition could go live on it; 1: one could not, and why is told.
    """
    _run(target, settings, as_json=as_json, make=False, adopt=False)


@app.command("init")
@with_settings
def init(
    settings: Settings,
    target: Named,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Partitions that disagree, too, go on from their mark as the rows are now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the table of positions, and a position for each partition that has none: its last mark's. Stop it first.

    statehold sink init examples.sinks.app:service

    With --adopt you say that the rows are right as they are: nothing is written again, nothing is taken back.
    Exit code 0: every partition can go live; 1: one disagrees and was left as it is.
    """
    _run(target, settings, as_json=as_json, make=True, adopt=adopt)


def _run(
    target: str,
    settings: Settings,
    *,
    as_json: bool,
    make: bool,
    adopt: bool,
) -> None:
    service = service_of(settings, target)
    found = standings(service, settings, make=make, adopt=adopt)
    if as_json:
        shown.print_json(msgspec.to_builtins(found))
    else:
        _print(found)
    bad = [each for each in found if each.trouble]
    if bad:
        shown.complain(
            f"{service.names.input}[{bad[0].partition}]@{bad[0].mark}: {bad[0].trouble}; `statehold sink init "
            f"{target}` "
            f"gives a position to partitions without one, with --adopt to the others, too"
        )
        raise typer.Exit(Answer.NO)


def _print(found: list[Standing]) -> None:
    table = Table("partition", "mark", "database", "epoch", "owner", "", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in found:
        position = "-" if each.position is None else str(each.position)
        ahead = "ahead, by one transaction" if each.position != each.mark else ""
        said = each.trouble or ("made now" if each.made else ahead)
        epoch = "-" if each.epoch is None else str(each.epoch)
        cells = (str(each.partition), str(each.mark), position, epoch, each.owner, said)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    Console(highlight=False).print(table)
