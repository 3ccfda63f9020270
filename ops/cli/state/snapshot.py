"""The table of the commands `statehold snapshot ...`; each is in its own module."""

from __future__ import annotations

import typer

from statehold.ops.cli.service import command
from statehold.ops.cli.state import backup, export, snapshot_diff, snapshot_list, snapshot_show, snapshot_verify

app = typer.Typer(help="Inspect, take, back up, restore and export the snapshots of a service.", no_args_is_help=True)
app.command("list")(snapshot_list.list_)
app.command("show")(snapshot_show.show_)
app.command("verify")(snapshot_verify.verify_)
app.command("diff")(snapshot_diff.diff)
app.command("history")(snapshot_diff.history)
app.command("take")(command.take)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("export")(export.export)
