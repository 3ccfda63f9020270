"""The table of the commands `statehold snapshot ...`; each is in its own module."""

from __future__ import annotations

import typer

from statehold.ops.cli.service import command
from statehold.ops.cli.snapshots import diff, listing, show, verify
from statehold.ops.cli.state import backup, export

app = typer.Typer(help="Inspect, take, back up, restore and export the snapshots of a service.", no_args_is_help=True)
app.command("list")(listing.list_)
app.command("show")(show.show_)
app.command("verify")(verify.verify_)
app.command("diff")(diff.diff)
app.command("history")(diff.history)
app.command("take")(command.take)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("export")(export.export)
