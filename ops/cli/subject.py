"""Which service a command is about: `module:service`, or its names where its code is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holdfast.config.settings import Settings
from holdfast.errors import UsageError
from holdfast.names import Names
from holdfast.ops.cli.target import find_service, load_settings
from holdfast.ops.logs import configure_quietly
from holdfast.service import Service

Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:SERVICE]", help="A service, or its names by --name and --input."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The service's name.")]
Input = Annotated[str | None, typer.Option("--input", metavar="TOPIC", help="Its input topic.")]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", help="Only this partition; may be repeated."),
]


class Subject(NamedTuple):
    """`service` is None when only the names were given: values are then shown without their types."""

    settings: Settings
    names: Names
    service: Service | None


def subject(
    target: str | None,
    name: str | None,
    input_topic: str | None,
    config: Path | None,
    overrides: list[str] | None,
    secrets_dir: Path | None,
    profile: str | None,
) -> Subject:
    """:raises UsageError: neither, or both. :raises SettingsError:"""
    settings = load_settings(config, overrides, secrets_dir, profile)
    configure_quietly(settings.log)
    if target is not None:
        if name or input_topic:
            raise UsageError(f"{target} declares its names itself; leave out --name and --input")
        service = find_service(target)
        service.settings = settings
        return Subject(service.settings, service.names, service)
    if not (name and input_topic):
        raise UsageError(
            "name the service: module:service, such as examples.clearing.app:service, or --name clearing --input trades"
        )
    return Subject(settings, Names(name, input_topic, settings.service.namespace), None)
