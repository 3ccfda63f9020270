"""Lists commands without importing them, because the modules of all commands together take a second to import."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class CommandEntry(NamedTuple):
    """The line of a command in `statehold --help`, and the place of its code."""

    name: str
    #: the module in this folder, then a typer application or a function
    place: str
    summary: str


class LazyCommand(TyperCommand):
    """Shows one line of help, and loads the command when its words are parsed."""

    def __init__(self, entry: CommandEntry, panel: str) -> None:
        super().__init__(name=entry.name, short_help=entry.summary, rich_help_panel=panel)
        self._entry = entry

    def load(self) -> Any:
        """Import the command and return it: a click command or group."""
        # Here, because not every call loads a command; structlog first, or it finds rich and imports its tracebacks.
        from statehold.telemetry.structlog_import import import_structlog

        import_structlog()
        from statehold.ops.cli.common.shared_options import share

        module, _, attribute = self._entry.place.partition(":")
        found = getattr(importlib.import_module(f"statehold.ops.cli.{module}"), attribute)
        holder = typer.Typer()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name)(found)
        return share(get_group(holder).commands[self._entry.name])

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return self.load().make_context(*args, **extra)


class LazyGroup(TyperGroup):
    """A group of lazy commands. A subclass gives `panels`: the entries by the heading that they are listed under."""

    panels: ClassVar[Mapping[str, tuple[CommandEntry, ...]]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for panel, entries in self.panels.items():
            for entry in entries:
                self.add_command(LazyCommand(entry, panel))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from statehold.ops.cli.common.shared_options import readable  # here, because it imports rich

        for param in self.get_params(ctx):
            readable(param)
        super().format_help(ctx, formatter)


def loaded(command: Any) -> Any:
    """Return the command itself, for programs that walk through all commands."""
    return command.load() if isinstance(command, LazyCommand) else command
