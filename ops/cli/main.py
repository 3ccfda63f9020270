"""The commands of `statehold`: each lives in a module of its own and has its place in the table here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer

from statehold import __version__
from statehold.ops.cli.inspect import cat, config, doctor, lag, prove, schema, status, support, top, txn
from statehold.ops.cli.service import command, deploy, dev, drain, new, pause, retry, run, upgrade
from statehold.ops.cli.state import compact, repair, snapshot, state
from statehold.ops.cli.topics import dlq, sink, topics

#: by what one is about, as `statehold --help` shows them
_COMMANDS: Final[Mapping[str, Mapping[str, typer.Typer | Callable[..., None]]]] = {
    "Begin": {
        "new": new.new,
        "dev": dev.app,
        "topics": topics.app,
        "run": run.run,
        "config": config.app,
        "schema": schema.schema,
        "deploy": deploy.app,
    },
    "See": {
        "status": status.status,
        "top": top.top,
        "lag": lag.lag,
        "doctor": doctor.doctor,
        "cat": cat.cat,
        "support-bundle": support.support_bundle,
    },
    "Act on a running service": {
        "retry": retry.retry,
        "dlq": dlq.app,
        "command": command.command,
        "pause": pause.pause,
        "resume": pause.resume,
        "drain": drain.drain,
        "finish-upgrade": upgrade.finish_upgrade,
        "txn": txn.app,
    },
    "Its state": {
        "snapshot": snapshot.app,
        "compact": compact.compact,
        "prove": prove.prove,
        "state": state.app,
        "repair": repair.app,
        "sink": sink.app,
    },
}

app = typer.Typer(
    name="statehold",
    help="Stateful Kafka consumers that survive being killed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _panel, _commands in _COMMANDS.items():
    for _name, _each in _commands.items():
        if isinstance(_each, typer.Typer):
            app.add_typer(_each, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_each)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"statehold {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""
