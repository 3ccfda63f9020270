"""`--yes` and `--dry-run` of the commands that replace the state of a stopped service."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from statehold.admin.state.killed_command import await_killed_command
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.ops.cli.common.output import WrongOption
from statehold.ops.cli.common.waiting import progress

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change, as without --yes.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Make the change. The group must be empty; every partition is fenced first.")
]

#: last line of a command that changed nothing
SHOWN: Final = "nothing was changed; --yes does it"


def acts(settings: Settings, names: Names, *, dry_run: bool, yes: bool) -> bool:
    """Return whether the command makes the change; wait first for the session of a killed command.

    :raises WrongOption: --dry-run and --yes.
    """
    if dry_run and yes:
        raise WrongOption("--dry-run and --yes contradict each other")
    if yes:
        await_killed_command(settings, names, progress)
    return yes
