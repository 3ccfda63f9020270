"""Reads the settings from the command line, the environment, the secrets directory and a TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.option import Option
from statehold.config.common.secret import REDACTED
from statehold.config.sections.tree import sections
from statehold.config.settings import Settings
from statehold.config.sources import (
    EXTRA,
    Layer,
    known_options,
    merge,
    open_secrets,
    profile_path,
    read_environment,
    read_overrides,
    read_secrets,
    read_toml,
    refused_extra,
    unknown_keys,
)


def load(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    secrets_dir: Path | None = None,
    *,
    profile: str | None = None,
) -> Settings:
    """Read the settings: command line (`overrides`) > environment > secrets directory > TOML file > defaults.

    `profile` names a shipped file (`development`, `production`) that comes between TOML and defaults.
    `overrides` maps dotted keys to text; `env` is the process's by default. Raises SettingsError with every
    unknown key and bad value found, each with its origin and what is allowed; secrets are redacted in it.
    """
    layers = layers_of(path, overrides, env, secrets_dir, profile)
    options = known_options()
    problems = [problem for layer in layers for problem in (*unknown_keys(layer, options), *refused_extra(layer))]
    problems += open_secrets(layers[0], options)
    given = merge(layers)
    values, wrong = _parse(given, options)
    if problems or wrong:
        raise SettingsError([*problems, *wrong])
    return _build(values, given)


def layers_of(
    path: Path | None,
    overrides: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    secrets_dir: Path | None,
    profile: str | None,
) -> list[Layer]:
    """Read all sources, the strongest first. Raises SettingsError if one cannot be read."""
    return [
        read_overrides(overrides or {}),
        read_environment(os.environ if env is None else env),
        read_secrets(secrets_dir) if secrets_dir is not None else {},
        read_toml(path) if path is not None else {},
        read_toml(profile_path(profile)) if profile is not None else {},
    ]


def _parse(given: Layer, options: Mapping[str, Option]) -> tuple[dict[str, object], list[Problem]]:
    """Return the values of all known keys, and one problem for each bad value."""
    values: dict[str, object] = {key: one.raw for key, one in given.items() if key.startswith(f"{EXTRA}.")}
    problems: list[Problem] = []
    for key, option in options.items():
        if key in given:
            try:
                values[key] = option.parse(given[key].raw)
            except ValueError as error:
                shown = REDACTED if option.kind == "secret" else repr(given[key].raw)
                problems.append(Problem(key=key, value=shown, origin=given[key].origin, cause=f"allowed: {error}"))
    return values, problems


def _build(values: Mapping[str, object], given: Layer) -> Settings:
    kinds = sections()
    arguments: dict[str, dict[str, Any]] = {name: {} for name in (EXTRA, *kinds)}
    for key, value in values.items():
        if key.startswith(f"{EXTRA}."):
            arguments[EXTRA][key.removeprefix(f"{EXTRA}.")] = value
        else:
            section, _, name = key.rpartition(".")
            arguments[section][name] = value
    try:
        kafka = arguments["kafka"] | {
            "extra": arguments.pop(EXTRA),
            "security": kinds["kafka.security"](**arguments.pop("kafka.security")),
        }
        arguments["kafka"] = kafka
        return Settings(**{name: kinds[name](**chosen) for name, chosen in arguments.items()})
    except SettingsError as wrong:
        raise SettingsError([_with_origin(problem, given) for problem in wrong.problems]) from None


def _with_origin(problem: Problem, given: Layer) -> Problem:
    origin = given[problem.key].origin if problem.key in given else problem.origin or "default"
    return replace(problem, origin=origin)
