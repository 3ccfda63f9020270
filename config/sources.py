"""Reads each source of settings into one shape: dotted key -> raw value and its origin."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.option import Option, options_of
from statehold.config.common.secret import FileText
from statehold.config.librdkafka.client_keys import ALLOWED
from statehold.config.librdkafka.extra import as_text, key_from_environment, problem_of
from statehold.config.librdkafka.locked_keys import ALIASES
from statehold.config.sections.tree import sections

PREFIX: Final = "STATEHOLD_"
EXTRA: Final = "kafka.extra"
# Variables of scripts, tests and tools; they are not settings of a service.
RESERVED: Final = (
    "STATEHOLD_CONFIG",
    "STATEHOLD_PYTHON",
    "STATEHOLD_VENV",
    "STATEHOLD_NO_BROKER",
    "STATEHOLD_SEED",
    "STATEHOLD_DEV_",
    "STATEHOLD_TEST_",
    "STATEHOLD_BENCH_",
)


_PROFILES: Final = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value as written, and its origin."""

    raw: object
    origin: str


Layer = dict[str, Given]


def known_options() -> dict[str, Option]:
    """Every setting by its dotted key, without `kafka.extra`."""
    return {
        f"{name}.{entry.name}": option for name, section in sections().items() for entry, option in options_of(section)
    }


def read_overrides(overrides: Mapping[str, str]) -> Layer:
    """The command line's `key=value` pairs."""
    return {key: Given(raw=value, origin="command line") for key, value in overrides.items()}


def read_environment(env: Mapping[str, str]) -> Layer:
    """Every STATEHOLD_ variable: STATEHOLD_COMMIT__INTERVAL is commit.interval."""
    return {
        _key_of_variable(name): Given(raw=value, origin=f"environment variable {name}")
        for name, value in env.items()
        if name.startswith(PREFIX) and not name.startswith(RESERVED)
    }


def read_secrets(directory: Path) -> Layer:
    """One file per setting, named like the variable (any case, STATEHOLD_ optional) or like the dotted key.

    The directory may hold other files, too: only names that begin with statehold_ or a section's name are read.
    Raises SettingsError when the directory cannot be read.
    """
    layer: Layer = {}
    for file in sorted(_listing(directory)):
        key = _key_of_file(file.name)
        if key is not None:
            layer[key] = Given(raw=FileText(_content(file).rstrip("\r\n"), file), origin=f"file {file}")
    return layer


def read_toml(path: Path) -> Layer:
    """A TOML file. Raises SettingsError naming the file, and the line if known, if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        flat = list(_flatten(tomllib.loads(text), ""))
    except FileNotFoundError:
        raise SettingsError(Problem(key="--config", cause=f"there is no file {path}")) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failed:
        raise SettingsError(Problem(key="--config", origin=str(path), cause=f"cannot be read: {failed}")) from failed
    except RecursionError:
        raise SettingsError(Problem(key="--config", origin=str(path), cause="is nested too deeply")) from None
    lines = _line_numbers(text)
    return {key: Given(raw=raw, origin=f"{path}:{lines[key]}" if key in lines else str(path)) for key, raw in flat}


def profile_path(name: str) -> Path:
    """Return the path of a shipped profile. Raises SettingsError with the existing names."""
    path = _PROFILES / f"{name}.toml"
    if not path.is_file():
        names = sorted(file.stem for file in _PROFILES.glob("*.toml"))
        raise SettingsError(Problem(key="--profile", value=repr(name), cause=f"allowed: {', '.join(names)}"))
    return path


def merge(layers: Sequence[Layer]) -> Layer:
    """One layer out of several, the strongest first. A librdkafka key gets its own name, whatever alias was written.

    Otherwise a weaker layer's alias could win over a stronger layer's value.
    """
    merged: Layer = {}
    for layer in reversed(layers):
        merged |= {_without_alias(key): given for key, given in layer.items()}
    return merged


def _without_alias(key: str) -> str:
    name = key.removeprefix(f"{EXTRA}.")
    return key if name == key else f"{EXTRA}.{ALIASES.get(name, name)}"


def unknown_keys(layer: Layer, options: Mapping[str, Option]) -> list[Problem]:
    """Return one problem for each unknown key, with the nearest known one."""
    return [
        Problem(key=key, origin=given.origin, cause=f"unknown setting{_did_you_mean(key, options)}")
        for key, given in layer.items()
        if not is_known(key, options)
    ]


def refused_extra(layer: Layer) -> list[Problem]:
    """Return one problem for each rejected librdkafka key or value of this layer."""
    found = [
        (problem_of(key.removeprefix(f"{EXTRA}."), as_text(given.raw)), given)
        for key, given in layer.items()
        if key.startswith(f"{EXTRA}.")
    ]
    return [replace(problem, origin=given.origin) for problem, given in found if problem is not None]


def open_secrets(overrides: Layer, options: Mapping[str, Option]) -> list[Problem]:
    """Return one problem for each secret on the command line."""
    cause = (
        "is a secret: every user of the machine can read command lines; use the secrets directory or the environment"
    )
    return [
        Problem(key=key, origin=given.origin, cause=cause)
        for key, given in overrides.items()
        if (key in options and options[key].kind == "secret") or _is_secret_extra(key)
    ]


def _is_secret_extra(key: str) -> bool:
    found = ALLOWED.get(key.removeprefix(f"{EXTRA}.")) if key.startswith(f"{EXTRA}.") else None
    return found is not None and found.secret


def is_known(key: str, options: Mapping[str, Option]) -> bool:
    """Return whether this is the key of a setting or of a librdkafka setting in `kafka.extra`."""
    return key in options or key.startswith(f"{EXTRA}.")


def _did_you_mean(key: str, options: Mapping[str, Option]) -> str:
    section, _, name = key.rpartition(".")
    same_name = [known for known in options if section and known.endswith(f".{name}")]
    close = same_name or ([] if key in sections() else get_close_matches(key, options, n=1))
    if close:
        return f"; did you mean {close[0]}?"
    first = key.partition(".")[0]
    inside = [known.partition(".")[2] for known in options if known.startswith(f"{first}.")]
    if inside:
        return f"; {first} has {', '.join(inside)}"
    return f"; the sections are {', '.join(dict.fromkeys(known.partition('.')[0] for known in options))}"


def _key_of_variable(name: str) -> str:
    path = name.removeprefix(PREFIX)
    extra = "KAFKA__EXTRA__"
    if path.startswith(extra):
        return f"{EXTRA}.{key_from_environment(path.removeprefix(extra))}"
    return path.lower().replace("__", ".")


def _key_of_file(name: str) -> str | None:
    if name.startswith("."):
        return None
    upper = name.upper()
    if upper.startswith(PREFIX):
        return _key_of_variable(upper)
    first = name.lower().replace("__", ".").partition(".")
    if not first[1] or first[0] not in sections():
        return None
    return name if name.startswith(f"{EXTRA}.") else _key_of_variable(PREFIX + upper) if "__" in name else name.lower()


def _listing(directory: Path) -> list[Path]:
    try:
        return [entry for entry in directory.iterdir() if entry.is_file()]
    except OSError as failed:
        cause = f"cannot be read: {failed.strerror}"
        raise SettingsError(Problem(key="--secrets-dir", origin=str(directory), cause=cause)) from failed


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        # The error's text is left out, because it could quote the secret.
        cause = "cannot be read as UTF-8 text by this user"
        raise SettingsError(Problem(key="--secrets-dir", origin=str(file), cause=cause)) from failed


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            # `fetch.wait.max.ms = 50` without quotes is four nested tables in TOML; it means the same key
            # here.
            yield from _flatten(value, f"{key}.")
        elif not isinstance(value, dict):
            yield key, value


_TABLE: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line of each key; a key in an inline table has no line."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _plain(header[1]) + "."
        elif key := _KEY.match(line):
            lines.setdefault(table + _plain(key[1]), number)
    return lines


def _plain(dotted: str) -> str:
    return re.sub(r"\s*\.\s*", ".", dotted).replace('"', "").replace("'", "")
