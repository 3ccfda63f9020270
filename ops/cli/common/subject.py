"""Finds the service of a command, by `module:service` or by its names, and its settings.

Nearly every command takes these options, so they are declared once: `@with_subject` and
`@with_settings` add them to a command and pass it the result.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from statehold.bound.attributes import sinks_of, tables_and_outputs
from statehold.bound.sink import PartitionSink
from statehold.bound.topics import class_of, output_topics, reference_topics
from statehold.common.names import Names
from statehold.config.common.errors import SettingsError
from statehold.config.settings import Settings
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.target import (
    All,
    AnswerTimeout,
    Config,
    DryRun,
    InputName,
    Overrides,
    Partitions,
    Profile,
    SecretsDir,
    ServiceName,
    Target,
    find_service,
    names_of,
    partitions_of,
    quiet_settings,
)
from statehold.ops.cli.common.waiting import patient
from statehold.service import Service
from statehold.snapshot.inspect.typed import Typed

Command = Callable[..., None]

#: the last options in every command's help
_LAST: Final = ("who", "dry_run", "yes", "config", "overrides", "secrets_dir", "profile", "as_json")


#: not needed by a command that asks no broker
_SECRETS: Final = ("STATEHOLD_KAFKA__SECURITY__SASL_PASSWORD", "STATEHOLD_KAFKA__SECURITY__OAUTH_CLIENT_SECRET")


class Subject(NamedTuple):
    """Without the code (only names given) `service` is absent, and values are shown without their types."""

    settings: Settings
    names: Names
    service: Service | None
    #: module:service; empty without the code
    target: str = ""

    @property
    def typed(self) -> Typed:
        """Return the converter from stored values to JSON."""
        return Typed(tables_and_outputs(class_of(self.service.handler))[0]) if self.service is not None else Typed()

    @property
    def sinks(self) -> list[PartitionSink[Any]] | None:
        """Return the sinks of its handler, if that is known."""
        return list(sinks_of(class_of(self.service.handler)).values()) if self.service is not None else None

    @property
    def references(self) -> list[str]:
        """Return the topics of the reference data that its handler declares; none without the code."""
        return reference_topics(self.service.handler) if self.service is not None else []

    def outputs(self, given: Sequence[str] | None = None) -> list[str]:
        """Return the output topics that its handler declares, or the given ones.

        :raises UsageError: both.
        """
        if self.service is None:
            return list(given or ())
        if given:
            raise WrongOption(f"{self.names.service} declares its outputs itself; leave out --output")
        return output_topics(self.service.handler, self.service.names)


def subject_of(settings: Settings, target: str | None, name: str | None, input_topic: str | None) -> Subject:
    """:raises UsageError: neither, or both."""
    names = names_of(settings, target, name, input_topic)
    if target is None:
        return Subject(settings, names, None)
    service = find_service(target)
    return Subject(service.settings, names, service, target)


class Choice(NamedTuple):
    """What a command resolves through the control topic, dead letters or durable calls, and how it answers."""

    about: Subject
    #: empty: all
    partitions: list[int]
    everything: bool
    dry_run: bool
    #: seconds
    timeout: float
    as_json: bool

    @property
    def settings(self) -> Settings:
        return self.about.settings


def _settings(
    config: Config = None, overrides: Overrides = None, secrets_dir: SecretsDir = None, profile: Profile = None
) -> Settings:
    return quiet_settings(config, overrides, secrets_dir, profile)


def _subject(
    target: Target = None,
    service: ServiceName = None,
    input_topic: InputName = None,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
) -> Subject:
    return subject_of(quiet_settings(config, overrides, secrets_dir, profile), target, service, input_topic)


def _choice(
    target: Target = None,
    service: ServiceName = None,
    input_topic: InputName = None,
    partitions: Partitions = None,
    everything: All = False,
    timeout: AnswerTimeout = 60.0,
    dry_run: DryRun = False,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> Choice:
    about = _subject(target, service, input_topic, config, overrides, secrets_dir, profile)
    return Choice(about, partitions_of(partitions), everything, dry_run, timeout, as_json)


@functools.wraps(_subject)
def _names(**given: Any) -> Subject:
    try:
        return _subject(**given)
    except SettingsError:  # an administrator who grants rights has no password of the service
        missing = [name for name in _SECRETS if name not in os.environ]
        os.environ.update(dict.fromkeys(missing, "unused"))
        try:
            return _subject(**given)
        finally:
            for name in missing:
                del os.environ[name]


def with_settings(command: Command) -> Command:
    """Pass the command `settings`, from --config, --set, --secrets-dir and --profile."""
    return lending(_settings, "settings", command)


def with_names(command: Command) -> Command:
    """Pass the command `about`, as `with_subject` does; it asks no broker, so that passwords may be missing."""
    return lending(_names, "about", command)


def with_subject(command: Command) -> Command:
    """Pass the command `about`, from MODULE:SERVICE, or --name and --input, and the settings."""
    return lending(_subject, "about", command)


def with_choice(command: Command) -> Command:
    """Pass the command `choice`: `about`, --partitions, --all, --timeout, --dry-run and --json."""
    return lending(_choice, "choice", command)


def lending(make: Callable[..., Any], name: str, command: Command) -> Command:
    """Pass the command what `make` returns as `name`; typer sees the parameters of `make` in its place.

    What `make` returns is settings, or has them as `settings`.
    """
    lent = inspect.signature(make, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = make(**{each: given.pop(each) for each in lent})
        with patient(made if isinstance(made, Settings) else made.settings):
            command(**{name: made}, **given)

    shown = [each for mine in own.parameters.values() for each in (lent.values() if mine.name == name else (mine,))]
    shown.sort(key=lambda each: _LAST.index(each.name.strip("_")) if each.name.strip("_") in _LAST else -1)
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
    cast("Any", run).__signature__ = own.replace(parameters=keywords)
    return run
