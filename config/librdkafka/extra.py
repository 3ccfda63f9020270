"""The librdkafka settings of `[kafka.extra]`: immutable, allowed keys only, secrets hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.secret import REDACTED
from statehold.config.librdkafka.client_keys import ALLOWED, Client
from statehold.config.librdkafka.locked_keys import ALIASES, LOCKED, OWNED


class Extra(Mapping[str, str]):
    """librdkafka key -> text, checked. Raises SettingsError with every rejected key."""

    __slots__ = ("_items",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        given = {key: as_text(value) for key, value in (values or {}).items()}
        problems = [found for key, value in given.items() if (found := problem_of(key, value)) is not None]
        if problems:
            raise SettingsError(problems)
        self._items: dict[str, str] = {ALIASES.get(key, key): value for key, value in given.items()}

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Extra:
        """Return `values` itself if it is an Extra already."""
        return values if isinstance(values, Extra) else cls(values)

    def for_clients(self, *clients: Client) -> dict[str, str]:
        """The keys meant for these kinds of client."""
        return {key: value for key, value in self._items.items() if ALLOWED[key].client in clients}

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        shown = {key: REDACTED if ALLOWED[key].secret else value for key, value in self._items.items()}
        return f"Extra({shown!r})"


def as_text(value: object) -> str:
    """A value as librdkafka reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def problem_of(key: str, value: str) -> Problem | None:
    """Return the reason to reject this key or value, or None."""
    name = ALIASES.get(key, key)
    dotted = f"kafka.extra.{key}"
    alias = f" (another name of {name})" if name != key else ""
    if name in LOCKED:
        return Problem(key=dotted, cause=f"{key}{alias} cannot be set here: it {LOCKED[name]}")
    if name in OWNED:
        return Problem(key=dotted, cause=f"{key}{alias} has a setting of its own: {OWNED[name]}")
    allowed = ALLOWED.get(name)
    if allowed is None:
        return Problem(key=dotted, cause=f"not on the allow-list of librdkafka settings{_suggestion(key)}")
    if not allowed.accepts(value):
        shown = REDACTED if allowed.secret else repr(value)
        return Problem(key=dotted, value=shown, cause=f"allowed: {allowed.allowed}")
    return None


def key_from_environment(name: str) -> str:
    """The librdkafka key of an environment name: FETCH_WAIT_MAX_MS is fetch.wait.max.ms."""
    wanted = name.lower().replace("__", "_")
    for key in (*ALLOWED, *LOCKED, *OWNED, *ALIASES):
        if key.replace(".", "_") == wanted:
            return key
    return wanted.replace("_", ".")


def _suggestion(key: str) -> str:
    close = get_close_matches(key, ALLOWED, n=1)
    return f"; did you mean {close[0]}?" if close else "; the page Settings of the documentation lists the allowed keys"


NO_EXTRA: Final = Extra()
