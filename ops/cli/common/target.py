"""Arguments that name a service, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from statehold import service_lookup
from statehold.bound.topics import output_topics, reference_topics
from statehold.common.names import Names
from statehold.config.loading import load
from statehold.config.settings import Settings
from statehold.ops.cli.common.output import WrongOption
from statehold.ops.cli.common.shared_options import with_code, with_name, with_required_code, with_servers
from statehold.ops.process.logs import configure_quietly
from statehold.ops.reports.acl_hint import remember

if TYPE_CHECKING:  # a command that gets names instead of code starts faster without it
    from statehold.service import Service

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Read settings from this TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Set one setting, such as log.level=debug; it overrides environment and files.",
        callback=with_servers,
    ),
]
SecretsDir = Annotated[
    Path | None,
    typer.Option("--secrets-dir", metavar="DIR", help="Read secrets from here, one file per setting."),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Start from the defaults for development or production."),
]

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:SERVICE",
        help="The service in your code, such as order_totals.app:service; or use --name.",
        callback=with_code,
    ),
]
Code = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:SERVICE",
        help="The service in your code, such as order_totals.app:service.",
        callback=with_required_code,
    ),
]
ServiceName = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="The service's name, if you do not have its code here.", callback=with_name
    ),
]
InputName = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="TOPIC[,TOPIC...]", help="With --name: its input topic, or several in their order."
    ),
]
Outputs = Annotated[
    list[str] | None, typer.Option("--output", metavar="TOPIC", help="With --name: an output topic; may be repeated.")
]
ViaControlTopic = Annotated[
    bool,
    typer.Option(
        "--via-control-topic",
        help="Write to the control topic, not to the input: other readers of the input would meet the command.",
    ),
]


def written_reason(text: str) -> str:
    """Return the reason. :raises WrongOption: it is blank, such as an unset variable of a script."""
    if not text.strip():
        raise WrongOption('--why is empty: write the reason, such as --why "ticket 17"')
    return text


Why = Annotated[
    str,
    typer.Option(
        "--why",
        metavar="TEXT",
        help="Record this reason in the changelog permanently.",
        callback=written_reason,
    ),
]
#: options of commands that resolve something through the control topic: dead letters, durable calls
All = Annotated[bool, typer.Option("--all", help="All of them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show which ones match.")]
AnswerTimeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait at most this long for each round of answers.")
]
_STORED_WHY: Final = "Store this reason with the command and its outcome."
OutcomeWhy = Annotated[str, typer.Option("--why", metavar="TEXT", help=_STORED_WHY, callback=written_reason)]
OptionalWhy = Annotated[str, typer.Option("--why", metavar="TEXT", help=_STORED_WHY)]
Who = Annotated[
    str | None, typer.Option("--who", metavar="TEXT", help="Record this person as the author. [default: user@host]")
]

#: no topic has more partitions, so that a mistyped range fills no memory
_LAST_PARTITION: Final = 999_999


def partitions_of(text: str | None, option: str = "--partitions") -> list[int]:
    """Parse a list such as 0,3-5; return no numbers without a list.

    :raises WrongOption: it is not such a list.
    """
    found: list[int] = []
    for piece in text.split(",") if text is not None else ():
        low, dash, high = piece.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise WrongOption(f"{option} '{text}': write numbers and ranges, such as 0,3-5")
        first, last = int(low), int(high if dash else low)
        if not first <= last <= _LAST_PARTITION:
            raise WrongOption(f"{option} {text}: the lower number comes first, and {_LAST_PARTITION} is the highest")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def checked_partitions(param: typer.CallbackParam, text: str | None) -> str | None:
    """Return the option's list unchanged.

    :raises WrongOption: it is not such a list.
    """
    partitions_of(text, param.opts[0])
    return text


Partitions = Annotated[
    str | None,
    typer.Option(
        "--partitions",
        metavar="LIST",
        help="Only these partitions, such as 0,3-5. [default: all]",
        callback=checked_partitions,
    ),
]


def load_settings(
    config: Path | None, overrides: Sequence[str] | None, secrets_dir: Path | None, profile: str | None
) -> Settings:
    """Load the settings: command line > environment > secrets > TOML > profile > defaults.

    :raises UsageError: a --set without '='. :raises SettingsError: unknown keys and bad values.
    """
    return load(config, pairs_of(overrides), secrets_dir=secrets_dir, profile=profile)


def quiet_settings(
    config: Path | None, overrides: Sequence[str] | None, secrets_dir: Path | None, profile: str | None
) -> Settings:
    """Load the settings and log errors only, for a command that ends by itself."""
    settings = load_settings(config, overrides, secrets_dir, profile)
    configure_quietly(settings.log)
    return settings


def pairs_of(overrides: Sequence[str] | None) -> dict[str, str]:
    """:raises UsageError: a --set without '='."""
    pairs: dict[str, str] = {}
    for given in overrides or ():
        key, equals, value = given.partition("=")
        if not equals:
            raise WrongOption(f"--set {given}: write --set KEY=VALUE, such as --set log.level=debug")
        pairs[key.strip()] = value
    return pairs


def find_service(target: str) -> Service:
    """Import the module of `module:attribute`, with the current directory on the path; return its Service.

    :raises WrongOption: the text is not `module:attribute`. :raises UsageError, StartError: as `service_lookup.find`.
    """
    if finding := service_lookup.misspelled(target):
        raise WrongOption(finding)
    return service_lookup.find(target)


def service_of(settings: Settings, target: str) -> Service:
    """Find the service and give it the settings of this command."""
    service = find_service(target)
    service.settings = settings
    remember(
        settings,
        service.names,
        lambda: output_topics(service.handler, service.names),
        lambda: reference_topics(service.handler),
    )
    return service


def names_of(settings: Settings, target: str | None, name: str | None, input_topic: str | None) -> Names:
    """Return the service's names, as its module declares them or as the options give them.

    :raises WrongOption: both, or neither.
    """
    if target is not None:
        if name or input_topic:
            raise WrongOption(f"{target} declares its names itself; leave out --name and --input")
        return service_of(settings, target).names
    if not (name and input_topic):
        raise WrongOption(
            "name the service: module:service, such as order_totals.app:service, or --name and --input, "
            "such as --name order-totals --input order-totals.events"
        )
    first, *others = input_topic.split(",")
    names = Names(name, first, settings.service.namespace, tuple(others))
    remember(settings, names)
    return names


def local_name(target: str | None, name: str | None) -> str | None:
    """Return the name by which processes of this machine are found; None if neither is given.

    :raises WrongOption: both are.
    """
    if target is not None and name is not None:
        raise WrongOption(f"{target} declares its name itself; leave out --name")
    return find_service(target).name if target is not None else name
