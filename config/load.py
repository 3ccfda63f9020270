"""The edge: command line, environment, secrets directory and TOML file become Settings, by pydantic."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.option import Option, options_of
from statehold.config.common.secret import REDACTED
from statehold.config.librdkafka.locked_keys import ALIASES
from statehold.config.sections.connection import SecuritySettings
from statehold.config.settings import Settings, sections
from statehold.config.sources import (
    EXTRA,
    Layer,
    is_known,
    known_options,
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
    known = [{key: given for key, given in layer.items() if is_known(key, options)} for layer in layers]
    try:
        merged = _merge(known)
    except ValidationError as invalid:
        problems += [_problem(error, known, options) for error in invalid.errors(include_url=False)]
    else:
        if not problems:
            return _build(merged, known)
    raise SettingsError(problems)


def layers_of(
    path: Path | None,
    overrides: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    secrets_dir: Path | None,
    profile: str | None,
) -> list[Layer]:
    """What is written where, the strongest first. Raises SettingsError where something cannot be read."""
    return [
        read_overrides(overrides or {}),
        read_environment(os.environ if env is None else env),
        read_secrets(secrets_dir) if secrets_dir is not None else {},
        read_toml(path) if path is not None else {},
        read_toml(profile_path(profile)) if profile is not None else {},
    ]


class _LayerSource(PydanticBaseSettingsSource):
    """One layer as pydantic-settings wants it; the order of the sources is the precedence."""

    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._tree = _nested(layer)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._tree.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._tree


def _merge(layers: Sequence[Layer]) -> BaseModel:
    class Bound(_edge_model()):  # type: ignore[misc]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, layer) for layer in layers)

    bound: BaseModel = Bound()
    return bound


@cache
def _edge_model() -> type[BaseSettings]:
    """The tree of settings as a pydantic model, made from the declarations; what is not given stays unset."""
    tree = sections()
    security = _section_model("security", tree.pop("kafka.security"))
    parts: dict[str, Any] = {}
    for name, section in tree.items():
        nested: dict[str, Any] = {}
        if name == "kafka":
            nested = {"security": (security | None, None), "extra": (dict[str, Any] | None, None)}
        parts[name] = (_section_model(name, section, **nested) | None, None)
    return create_model("StateholdEdge", __base__=BaseSettings, **parts)


def _section_model(name: str, section: type[Any], **nested: Any) -> type[BaseModel]:
    declared: dict[str, Any] = {
        entry.name: (Annotated[Any, PlainValidator(option.parse)], None) for entry, option in options_of(section)
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)
    return create_model(f"{name.title()}Edge", __config__=config, **declared, **nested)


def _build(merged: BaseModel, layers: Sequence[Layer]) -> Settings:
    given = {name: dict(getattr(merged, name) or {}) for name in type(merged).model_fields}
    given = {
        name: {key: value for key, value in values.items() if key in getattr(merged, name).model_fields_set}
        for name, values in given.items()
        if values
    }
    kafka = given.get("kafka", {})
    tree = sections()
    try:
        if "security" in kafka:
            kafka["security"] = SecuritySettings(**kafka["security"].model_dump(exclude_unset=True))
        return Settings(**{name: tree[name](**values) for name, values in given.items()})
    except SettingsError as wrong:
        raise SettingsError([_with_origin(problem, layers) for problem in wrong.problems]) from None


def _problem(error: Any, layers: Sequence[Layer], options: Mapping[str, Option]) -> Problem:
    key = ".".join(str(part) for part in error["loc"])
    option = options.get(key)
    reason = error.get("ctx", {}).get("error", error["msg"])
    raw = next((layer[key].raw for layer in layers if key in layer), None)
    value = REDACTED if option is None or option.kind == "secret" else repr(raw)
    return _with_origin(Problem(key=key, value=value, cause=f"allowed: {reason}"), layers)


def _with_origin(problem: Problem, layers: Iterable[Layer]) -> Problem:
    for layer in layers:
        if problem.key in layer:
            return replace(problem, origin=layer[problem.key].origin)
    return replace(problem, origin=problem.origin or "default")


def _nested(layer: Layer) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, given in layer.items():
        name = key.removeprefix(f"{EXTRA}.")
        # One name per librdkafka key, or a lower layer's alias could win over a higher layer's value.
        path = key.split(".") if name == key else ["kafka", "extra", ALIASES.get(name, name)]
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = given.raw
    return tree
