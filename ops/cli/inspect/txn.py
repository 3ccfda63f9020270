"""`statehold txn list | abort`: finds and ends open transactions that block readers."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from statehold.common.exit_codes import Answer
from statehold.config.common.units import format_duration
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import subject_of, with_settings
from statehold.ops.cli.common.target import InputName, ServiceName, Target
from statehold.ops.reports.open_transactions import OpenPartition, OpenTransactions

app = typer.Typer(help="Find and end open transactions that block readers.", no_args_is_help=True)
_COLUMNS: Final = ("partition", "from offset", "hidden", "open for", "ends itself after", "owner", "holds up")


@app.command("list")
@with_settings
def list_(
    settings: Settings,
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Look at these topics instead of the service's."),
    ] = None,
    older_than: Annotated[
        float,
        typer.Option("--older-than", min=0, metavar="SECONDS", help="Hide those that are open for a shorter time."),
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show open transactions that block readers, with their age and partitions.

    statehold txn list order_totals.app:service

    It runs Kafka's own tool in a JVM for some seconds; without Java it guesses the owner.

    Exit code 0: none is old; 11: one is open and its owner is unknown;
    12: one has exceeded its timeout.
    """
    about = subject_of(settings, target, name, input_topic)
    names, transactions = about.names, OpenTransactions(about.settings, about.names)
    wanted = list(topics or [*names.inputs, names.changelog, names.snapshot, *about.outputs()])
    held = transactions.held(wanted, older_than)
    if as_json:
        document = {"known": not transactions.blind, "why": transactions.blind, "held": msgspec.to_builtins(held)}
        output.print_json(document)
    elif not held:
        output.report(f"no transaction of more than {format_duration(older_than)} is open on {', '.join(wanted)}")
    else:
        _print(held)
    if transactions.blind:
        output.complain(f"owners are guessed: {transactions.blind}")
        raise typer.Exit(Answer.UNKNOWN)
    hanging = next((each for each in held if each.hanging), None)
    if hanging is not None:
        output.complain(f"statehold txn abort '{hanging.topic}[{hanging.partition}]' ends the first that hangs")
        raise typer.Exit(Answer.FAILED)


@app.command("abort")
@with_settings
def abort(
    settings: Settings,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC[PARTITION]", help="End the transaction that is open here, as `txn list` shows it."
        ),
    ] = None,
    own: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="End the transaction of this transactional id of the service."),
    ] = None,
    foreign: Annotated[bool, typer.Option("--foreign", help="End also a transaction of another application.")] = False,
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    as_json: AsJson = False,
) -> None:
    """End an open transaction: one of the service by taking its id over, another one by Kafka's tool.

    statehold txn abort 'order-totals.totals[3]' order_totals.app:service

    It rejects an id of the service while its group has members. Kafka discards what the transaction wrote.

    Exit code 0: ended; 1: rejected, and nothing was changed.
    """
    if own is not None and target is None and place is not None and ":" in place:  # the only argument is the service
        place, target = None, place
    if (place is None) == (own is None):
        raise WrongOption("give either TOPIC[PARTITION], such as 'order-totals.totals[3]', or --id")
    about = subject_of(settings, target, name, input_topic)
    names, transactions = about.names, OpenTransactions(about.settings, about.names)
    if own is not None:
        partition = transactions.own_partition(own)
        if partition is None:
            raise UsageError(f"{own!r} is no id of {names.group}: they are called {names.transactional_id(0)[:-1]}N")
        transactions.fence(partition)
        owner = own
    else:
        found = re.fullmatch(r"(.+)\[(\d+)\]", place or "")
        if found is None:
            raise WrongOption(f"{place!r}: write TOPIC[PARTITION], such as 'order-totals.totals[3]'")
        owner = transactions.end(found[1], int(found[2]), foreign=foreign).owner
    if as_json:
        output.print_json({"ended": place or own, "owner": owner})
    else:
        output.report(f"ended: {place or own}, of {owner}")


def _print(held: list[OpenPartition]) -> None:
    rows = []
    for each in held:
        timeout = "?" if each.timeout is None else format_duration(each.timeout)
        owner = each.owner if each.known else f"perhaps {each.owner}"
        cells = (
            f"{each.topic}[{each.partition}]",
            str(each.offset),
            str(each.records),
            f"{each.seconds:.0f} s",
            timeout,
            owner,
            ", ".join(each.partitions) or "?",
        )
        rows.append([Text(cell, "red" if each.hanging else "") for cell in cells])
    output.print_table(_COLUMNS, rows)
