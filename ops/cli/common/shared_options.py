"""Adds the options that all commands share: the form of the output, the brokers, and the service by its code.

A command declares `as_json`, `overrides` and `target` or `name`; `share` adds the options that set them, too.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import typer
from rich.markup import escape
from typer.core import TyperCommand

from statehold.ops.cli.common import output

_SERVERS: Final = "statehold.bootstrap_servers"
_SERVICE: Final = "statehold.service"


def _choose(value: str | None) -> None:
    output.choose(value)


def _keep_servers(ctx: typer.Context, value: str | None) -> None:
    ctx.meta[_SERVERS] = value


def _keep_service(ctx: typer.Context, value: str | None) -> None:
    ctx.meta[_SERVICE] = value


def with_servers(ctx: typer.Context, value: list[str] | None) -> list[str] | None:
    """Return the values of --set, and --bootstrap-server as the last one.

    :raises WrongOption: --bootstrap-server is empty, such as an unset variable of a script.
    """
    servers = ctx.meta.get(_SERVERS)
    if servers is None:
        return value
    if not servers.strip():
        raise output.WrongOption("--bootstrap-server is empty: write HOST:PORT, such as broker-1:9092")
    return [*(value or ()), f"kafka.bootstrap_servers={servers}"]


def with_code(ctx: typer.Context, value: str | None) -> str | None:
    """Return MODULE:SERVICE, as the argument or --service gives it.

    :raises WrongOption: both do.
    """
    service = ctx.meta.get(_SERVICE)
    if not service or ":" not in service:
        return value
    if value is not None:
        raise output.WrongOption(f"{value} and --service {service} both name the service; leave one out")
    return str(service)


def with_required_code(ctx: typer.Context, value: str | None) -> str:
    """Return MODULE:SERVICE, for a command that needs the code.

    :raises WrongOption: neither the argument nor --service gives it, or both do.
    """
    service = ctx.meta.get(_SERVICE)
    if service and ":" not in service:
        raise output.WrongOption(f"--service {service}: this command needs the code: write --service MODULE:SERVICE")
    code = with_code(ctx, value)
    if code is None:
        raise output.WrongOption("name the service: MODULE:SERVICE, such as order_totals.app:service")
    return code


def with_name(ctx: typer.Context, value: str | None) -> str | None:
    """Return the value of --name; --service with a name instead of MODULE:SERVICE means the same."""
    service = ctx.meta.get(_SERVICE)
    return value if not service or ":" in service else value or str(service)


class NumbersCommand(TyperCommand):
    """A command whose arguments are numbers: a negative one is reported as such, not as an unknown option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)  # because the parser empties its list
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            found = next((each for each in given if re.fullmatch(r"-[0-9]+", each)), None)
            if found is None or getattr(error, "option_name", None) != found[:2]:
                raise
            raise output.WrongOption(f"{found}: a partition or an offset must not be negative") from error


#: each shared option -> the parameter of a command that it sets
_SETS: Final = {"output_form": "as_json", "bootstrap_servers": "overrides", "service_code": "target"}
_holder = typer.Typer(add_completion=False)


@_holder.command()
def _options(
    output_form: Annotated[
        Literal["table", "wide", "json", "yaml"] | None,
        typer.Option(
            "-o",
            metavar="table|wide|json|yaml",
            help="Print in this form; wide: rows are not wrapped. [default: table]",
            callback=_choose,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT,...",
            help="Use these brokers. [default: those of the settings]",
            callback=_keep_servers,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
    service_code: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="MODULE:SERVICE",
            help="The same as the argument MODULE:SERVICE.",
            callback=_keep_service,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
) -> None: ...


def readable(param: Any) -> Any:
    """Have a parameter's help shown as it is written; return the parameter.

    Typer would take `[default: all]` for markup and drop it, add a second default, and give a flag a type.
    """
    if "[default" in (param.help or ""):
        param.help, param.show_default = escape(param.help), False
    if getattr(param, "is_flag", False):
        param.metavar = ""
    return param


def share(command: Any) -> Any:
    """Add the shared options to a command, or to each command of a group; return it."""
    for each in getattr(command, "commands", {}).values():
        share(each)
    readable(command.get_help_option(typer.Context(command)))
    for param in command.params:
        if param.name == "target":
            param.required = False  # `with_required_code` reports a missing one, because --service may give it
    shown = [param.name.strip("_") for param in command.params]
    for extra in typer.main.get_command(_holder).params:
        own = _SETS[str(extra.name)]
        if own in shown:
            command.params.insert(shown.index(own), extra)
            shown.insert(shown.index(own), "")
    for param in command.params:
        readable(param)
    return command
