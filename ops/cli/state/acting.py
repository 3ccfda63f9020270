"""The options of commands that replace the state of a stopped service."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import typer

from statehold.admin.state.killed_command import await_killed_command
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.messages.command import issuer
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Command, lending
from statehold.ops.cli.common.target import (
    Code,
    Config,
    Overrides,
    Profile,
    SecretsDir,
    Who,
    Why,
    quiet_settings,
    service_of,
)
from statehold.ops.cli.common.waiting import progress
from statehold.service import Service
from statehold.snapshot.state_replacement import ReplacementReason

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change, as without --yes.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Make the change. The group must be empty; every partition is fenced first.")
]

#: last line of a command that changed nothing
SHOWN: Final = "nothing was changed; --yes does it"


class StateChange(NamedTuple):
    """The service whose state is to be replaced, by whom and why, and how the command answers."""

    settings: Settings
    #: MODULE:SERVICE
    target: str
    service: Service
    why: str
    who: str | None
    dry_run: bool
    yes: bool
    as_json: bool

    def reason(self, tool: str) -> ReplacementReason:
        """Return what the changelog keeps of --who and --why."""
        return ReplacementReason(tool=f"{tool} {__version__}", who=self.who or issuer(), why=self.why)

    def acts(self) -> bool:
        """Return whether the command makes the change; wait first for the session of a killed command.

        :raises WrongOption: --dry-run and --yes.
        """
        if self.dry_run and self.yes:
            raise WrongOption("--dry-run and --yes contradict each other")
        if self.yes:
            await_killed_command(self.settings, self.service.names, progress)
        return self.yes


def _change(
    target: Code,
    why: Why,
    who: Who = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> StateChange:
    settings = quiet_settings(config, overrides, secrets_dir, profile)
    return StateChange(settings, target, service_of(settings, target), why, who, dry_run, yes, as_json)


def with_change(command: Command) -> Command:
    """Pass the command `change`, from MODULE:SERVICE, --why, --who, --dry-run, --yes, the settings and --json."""
    return lending(_change, "change", command)
