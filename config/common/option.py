"""Declares one setting: its default, meaning, unit and limits, once, at the field.

The same declaration checks values given in Python, reads text from the environment or a file, and prints the
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.secret import REDACTED, FileSecret, FileText, Secret
from statehold.config.common.units import (
    DURATION_FORMS,
    SIZE_FORMS,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

T = TypeVar("T")
Kind = Literal["seconds", "bytes", "count", "flag", "text", "secret", "map"]

NAME_PATTERN: Final = r"[A-Za-z0-9._-]*"
NAME_FORM: Final = "letters, digits, '.', '_' and '-'"
_METADATA_KEY: Final = "statehold"
_ON: Final = frozenset({"on", "true", "yes", "1"})
_OFF: Final = frozenset({"off", "false", "no", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting. `low` and `high` are inclusive, in the unit of `kind`.

    `words` are those of the field's Literal type: the only values of a text, or in place of a number.
    """

    kind: Kind
    doc: str
    low: float = 0
    high: float = float("inf")
    words: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""

    @property
    def allowed(self) -> str:
        """The values that a user may write, as half a sentence."""
        words = " or ".join(repr(word) for word in self.words)
        if self.kind in ("seconds", "bytes", "count"):
            form = {"seconds": DURATION_FORMS, "bytes": SIZE_FORMS, "count": "a whole number"}[self.kind]
            return ", or ".join(part for part in (f"{form}, {self.limits}" if self.limits else form, words) if part)
        if self.kind == "flag":
            return "true or false (also on, off, yes, no)"
        return words or self.form or "text"

    @property
    def limits(self) -> str:
        """Return the legal range in the option's unit."""
        low, high = self.show(self.low), self.show(self.high)
        return f"at least {low}" if self.high == float("inf") else f"from {low} to {high}"

    def show(self, value: object) -> str:
        """The value as a user would write it; a secret is redacted."""
        if self.kind == "secret" and value and not isinstance(value, Secret):
            return REDACTED
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            return repr(value)
        if self.kind == "seconds":
            return format_duration(value)
        if self.kind == "bytes":
            return format_size(int(value))
        return f"{value:_}"

    def parse(self, raw: object) -> object:
        """Parse the text or TOML value of a setting. Raises ValueError with the allowed values."""
        if isinstance(raw, str) and self.kind not in ("text", "secret") and raw.strip() not in self.words:
            raw = self._parse_text(raw.strip())
        elif isinstance(raw, str) and self.kind != "secret":
            raw = raw.strip()
        elif isinstance(raw, str):
            raw = FileSecret(raw) if isinstance(raw, FileText) else Secret(raw)
        return self.check(raw)

    def check(self, value: object) -> object:
        """Return the normalised value: seconds are floats. Raises ValueError with the allowed values."""
        if self.words and isinstance(value, str) and value in self.words:
            return value
        if self.kind == "secret" and isinstance(value, (str, Secret)):
            return value if isinstance(value, Secret) else Secret(value)
        if self.kind == "flag" and isinstance(value, bool):
            return value
        if self.kind == "text" and isinstance(value, str) and self._legal_text(value):
            return value
        if self.kind in ("seconds", "bytes", "count") and self._legal_number(value):
            return float(cast("float", value)) if self.kind == "seconds" else value
        raise ValueError(self.allowed)

    def _parse_text(self, text: str) -> object:
        if self.kind == "flag":
            return True if text.lower() in _ON else False if text.lower() in _OFF else text
        read = {"seconds": parse_duration, "bytes": parse_size}.get(self.kind, int)
        try:
            return read(text)
        except ValueError:
            raise ValueError(self.allowed) from None

    def _legal_text(self, text: str) -> bool:
        return not self.words and re.fullmatch(self.pattern or ".*", text, re.DOTALL) is not None

    def _legal_number(self, value: object) -> bool:
        whole = self.kind != "seconds"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            return False
        return self.low <= value <= self.high  # false for NaN too


def _declare(default: T, option: Option) -> T:
    # dataclasses reads the Field that this returns; for a type checker it is the default's own type.
    return field(default=default, metadata={_METADATA_KEY: option})


def seconds(default: T, doc: str, *, low: float = 0, high: float = float("inf")) -> T:
    """A duration in seconds, or a word."""
    return _declare(default, Option(kind="seconds", doc=doc, low=low, high=high))


def size(default: T, doc: str, *, low: int, high: int) -> T:
    """A number of bytes, or a word."""
    return _declare(default, Option(kind="bytes", doc=doc, low=low, high=high))


def count(default: int, doc: str, *, low: int = 0, high: int) -> int:
    """A whole number."""
    return _declare(default, Option(kind="count", doc=doc, low=low, high=high))


def flag(default: bool, doc: str) -> bool:
    """On or off."""
    return _declare(default, Option(kind="flag", doc=doc))


def choice(default: T, doc: str) -> T:
    """One of a few words."""
    return _declare(default, Option(kind="text", doc=doc))


def text(default: str, doc: str, *, pattern: str = "", form: str = "") -> str:
    """Free text, or text that matches all of `pattern`; `form` describes the pattern to people."""
    return _declare(default, Option(kind="text", doc=doc, pattern=pattern, form=form))


def secret(doc: str) -> Secret:
    """A password or key; empty by default."""
    return _declare(Secret(), Option(kind="secret", doc=doc))


def options_of(section: Any) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the declared settings of a section (class or instance), in order, without nested sections."""
    return iter(_options_of(section if isinstance(section, type) else type(section)))


@cache
def _options_of(section: type[Any]) -> tuple[tuple[Field[Any], Option], ...]:
    types = get_type_hints(section)
    declared = ((entry, entry.metadata.get(_METADATA_KEY)) for entry in fields(section))
    return tuple((entry, replace(option, words=_words(types[entry.name]))) for entry, option in declared if option)


def _words(kind: Any) -> tuple[str, ...]:
    """Return the words of a Literal, alone or in a union."""
    args = get_args(kind)
    return args if get_origin(kind) is Literal else tuple(word for each in args for word in _words(each))


class Section:
    """Base of a section's dataclass: `class CommitSettings(Section, name="commit")`. Checks and normalises its values.

    Creating one raises SettingsError naming every wrong key.
    """

    __slots__ = ()
    _name: ClassVar[str]

    def __init_subclass__(cls, name: str = "") -> None:
        if name:  # dataclasses creates a class with slots a second time, without arguments
            cls._name = name

    def __post_init__(self) -> None:
        problems = []
        for entry, option in options_of(self):
            value = getattr(self, entry.name)
            try:
                object.__setattr__(self, entry.name, option.check(value))
            except ValueError as refused:
                key, shown = f"{self._name}.{entry.name}", option.show(value)
                problems.append(Problem(key=key, value=shown, cause=f"allowed: {refused}"))
        if problems:
            raise SettingsError(problems)
