"""`statehold dev up | status | down`: runs a real Kafka on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal, assert_never

import typer
from rich.console import Console
from rich.text import Text

from statehold.common.exit_codes import Answer
from statehold.config import SettingsError
from statehold.config.loading import load
from statehold.dev import daemon
from statehold.dev.errors import NoCluster
from statehold.dev.jars import DEFAULT_VERSION
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson

app = typer.Typer(help="Run a real Kafka on this machine, for development.", no_args_is_help=True)


Directory = Annotated[
    Path | None, typer.Option("--dir", help="Keep the brokers' data here, and find them by it later.")
]


@app.command()
def up(
    brokers: Annotated[
        Literal["1", "3"],
        typer.Option(metavar="1|3", help="Start this many brokers; three replicate everything (RF 3, min.isr 2)."),
    ] = "1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1024, max=65000, help="Use ports from this one on. [default: the last one here, at first 9092]"
        ),
    ] = None,
    directory: Directory = None,
    kafka_version: Annotated[
        str | None,
        typer.Option(help=f"Use this version of Apache Kafka. [default: {DEFAULT_VERSION}]", metavar="VERSION"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start Kafka on this machine, wait until it answers, and leave it running.

    statehold dev up --brokers 3
    """
    place = directory or daemon.default_directory()
    port = port or daemon.remembered_port(place) or 9092
    seen = daemon.up(place, int(brokers), port, kafka_version, _report)
    _show(seen, as_json)


@app.command()
def status(directory: Directory = None, as_json: AsJson = False) -> None:
    """Show whether the brokers that `dev up` started run and answer.

    statehold dev status

    Exit code 0: all answer; 1: some do not; 3: no broker runs.
    """
    try:
        seen = daemon.status(directory or daemon.default_directory())
    except NoCluster as error:
        output.complain(str(error))
        raise typer.Exit(Answer.NOTHING_RUNS) from error
    _show(seen, as_json)
    raise typer.Exit(Answer.YES if seen.ready else Answer.NO if seen.running else Answer.NOTHING_RUNS)


@app.command()
def down(
    directory: Directory = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the data, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the brokers that `dev up` started, and keep their data for the next `dev up`.

    statehold dev down --delete
    """
    place = directory or daemon.default_directory()
    pids = daemon.down(place, delete=delete)
    if as_json:
        output.print_json({"directory": str(place), "stopped": pids, "deleted": delete})
    else:
        stopped = f"stopped pid {', '.join(map(str, pids))}" if pids else "nothing was running"
        Console(highlight=False).print(f"{stopped}; {'deleted' if delete else 'data kept in'} {place}", soft_wrap=True)


def _is_found(seen: daemon.ClusterReport) -> bool:
    """Return whether the other commands of this shell use these brokers without an option."""
    try:
        servers = load().kafka.bootstrap_servers
    except SettingsError:  # the other commands report it
        return False
    return not set(servers.split(",")).isdisjoint(seen.bootstrap_servers.split(","))


def _report(line: str) -> None:
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def _show(seen: daemon.ClusterReport, as_json: bool) -> None:
    if as_json:
        output.print_json(seen)
        return
    rows = [
        (each.broker, Text(each.state, _colour(each.state)), each.pid or "-", each.port, each.log)
        for each in seen.brokers
    ]
    console = Console(highlight=False)
    console.print(f"Kafka {seen.version} in {seen.directory}", soft_wrap=True)
    output.print_table(("broker", "state", "pid", "port", "log"), rows)
    console.print(f"bootstrap servers: [bold]{seen.bootstrap_servers}[/]", soft_wrap=True)
    if not _is_found(seen):
        console.print("The other commands look elsewhere. In each shell, first:", soft_wrap=True)
        console.print(f"export STATEHOLD_KAFKA__BOOTSTRAP_SERVERS={seen.bootstrap_servers}", soft_wrap=True)
    if Path(seen.directory) != daemon.default_directory():
        console.print(f"Stop: statehold dev down --dir {shlex.quote(seen.directory)}", soft_wrap=True)


def _colour(state: daemon.State) -> str:
    match state:
        case "ready":
            return "green"
        case "silent":
            return "yellow"
        case "down":
            return "red"
        case _:
            assert_never(state)
