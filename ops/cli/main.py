"""The commands of `holdfast`: each lives in a module of its own and is added here by one line."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.ops.cli import (
    cat,
    command,
    compact,
    dev,
    drain,
    operating,
    pause,
    prove,
    repair,
    retry,
    run,
    schema,
    snapshot,
    state,
    status,
    topics,
    upgrade,
)

app = typer.Typer(
    name="holdfast",
    help="Stateful Kafka consumers that survive being killed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.add_typer(topics.app, name="topics")
app.command("status")(status.status)
app.command("retry")(retry.retry)
app.command("drain")(drain.drain)
app.command("pause")(pause.pause)
app.command("resume")(pause.resume)
app.command("finish-upgrade")(upgrade.finish_upgrade)
app.command("compact")(compact.compact)
app.command("command")(command.command)
app.add_typer(snapshot.app, name="snapshot")
app.command("schema")(schema.schema)
app.command("cat")(cat.cat)
app.command("prove")(prove.prove)
app.add_typer(state.app, name="state")
app.add_typer(repair.app, name="repair")
app.add_typer(dev.app, name="dev")
operating.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""
