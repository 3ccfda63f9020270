"""Which service a looking command is about: `module:service`, or its names where its code is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from holdfast.config.settings import Settings
from holdfast.handler import Handler, declared
from holdfast.names import Names
from holdfast.ops.cli.target import find_service, names_of, quiet_settings
from holdfast.service import Service
from holdfast.snapshot.look.typed import Typed


class Subject(NamedTuple):
    """`service` is None when only the names were given: values are then shown without their types."""

    settings: Settings
    names: Names
    service: Service | None

    @property
    def typed(self) -> Typed:
        """What turns stored values into what JSON can hold."""
        return Typed(declared(handler_of(self.service))[0]) if self.service is not None else Typed()


def handler_of(service: Service) -> type[Handler[Any]]:
    made = service.handler
    return made if isinstance(made, type) else type(made())


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
    settings = quiet_settings(config, overrides, secrets_dir, profile)
    names = names_of(settings, target, name, input_topic)
    if target is None:
        return Subject(settings, names, None)
    service = find_service(target)
    return Subject(service.settings, names, service)
