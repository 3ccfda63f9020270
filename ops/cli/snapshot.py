"""`holdfast snapshot ...`: each command lives in a module of its own and is added here by one line."""

from __future__ import annotations

import typer

from holdfast.ops.cli import command, snapshot_list

app = typer.Typer(help="Look at the snapshots of a service, and have it take one.", no_args_is_help=True)
app.command("list")(snapshot_list.list_)
app.command("take")(command.take)
