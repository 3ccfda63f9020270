"""`statehold sink init | show`: compares and prepares the database of a service's sinks."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.common.exit_codes import Answer
from statehold.config.settings import Settings
from statehold.ops.cli.common import output as shown
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import with_settings
from statehold.ops.cli.common.target import Code, service_of
from statehold.ops.reports.sinks import Standing, standings

app = typer.Typer(
    help="Prepare the database of a service's sinks, and compare its positions with Kafka's.", no_args_is_help=True
)


@app.command("show")
@with_settings
def show(
    settings: Settings,
    target: Code,
    as_json: AsJson = False,
) -> None:
    """Compare the database's position of each partition with the partition's last commit record.

    statehold sink show order_totals.app:service

    Exit code 0: every partition could go live; 1: one could not, and the reason is printed.
    """
    _run(target, settings, as_json=as_json, make=False, adopt=False)


@app.command("init")
@with_settings
def init(
    settings: Settings,
    target: Code,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Let partitions that disagree continue from their commit record with the present rows."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prepare the database: create the table of positions, and the rows that are missing in it. Stop the service first.

    statehold sink init order_totals.app:service

    With --adopt you confirm that the rows are correct: the service neither repeats nor removes any.

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
        shown.print_json(found)
    else:
        _print(found)
    bad = [each for each in found if each.trouble]
    if bad:
        shown.complain(
            f"{service.names.input}[{bad[0].partition}]@{bad[0].commit_record}: {bad[0].trouble}; `statehold sink init "
            f"{target}` gives a position to partitions without one, with --adopt to the others, too"
        )
        raise typer.Exit(Answer.NO)


def _print(found: list[Standing]) -> None:
    rows = []
    for each in found:
        ahead = "ahead, by one transaction" if each.position != each.commit_record else ""
        said = each.trouble or ("made now" if each.made else ahead)
        rows.append((each.partition, each.commit_record, each.position, each.epoch, each.owner, said))
    shown.print_table(("partition", "commit record", "database", "epoch", "owner", ""), rows)
