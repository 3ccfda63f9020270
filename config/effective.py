"""The settings in force with the origin of each value; secrets are redacted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from statehold.config.common.option import options_of
from statehold.config.common.secret import REDACTED
from statehold.config.librdkafka.client_keys import ALLOWED
from statehold.config.loading import layers_of, load
from statehold.config.sections.tree import sections
from statehold.config.settings import Settings
from statehold.config.sources import EXTRA, merge


class Effective(NamedTuple):
    """One setting as a user would write it; `origin` is `default` if no source sets it."""

    key: str
    value: str
    origin: str
    default: str

    @property
    def changed(self) -> bool:
        return self.origin != "default"


def effective(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    secrets_dir: Path | None = None,
    *,
    profile: str | None = None,
) -> tuple[Settings, list[Effective]]:
    """Return the settings of `load`, and a list of each setting. Raises SettingsError."""
    settings = load(path, overrides, env, secrets_dir, profile=profile)
    layers = layers_of(path, overrides, env, secrets_dir, profile)
    origins = {key: given.origin for key, given in merge(layers).items()}
    return settings, listed(settings, origins)


def listed(settings: Settings, origins: Mapping[str, str] | None = None) -> list[Effective]:
    """Return each setting; without `origins` a value other than the default has the origin `set`."""
    found = []
    for name, section in sections().items():
        values = settings.kafka.security if name == "kafka.security" else getattr(settings, name)
        for entry, option in options_of(section):
            key, default = f"{name}.{entry.name}", option.show(entry.default)
            value = option.show(getattr(values, entry.name))
            found.append(Effective(key, value, _origin(origins, key, value != default), default))
    for name, value in settings.kafka.extra.items():
        key = f"{EXTRA}.{name}"
        shown = REDACTED if ALLOWED[name].secret else repr(value)
        found.append(Effective(key, shown, _origin(origins, key, True), "-"))
    return found


def _origin(origins: Mapping[str, str] | None, key: str, changed: bool) -> str:
    if origins is None:
        return "set" if changed else "default"
    return origins.get(key, "default")
