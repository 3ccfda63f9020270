"""Reads the declarations in the body of a class: a handler's tables, outputs, sinks and references."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from statehold.errors import UsageError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def once_per_class(read: F) -> F:
    """Cache the result for each class, because a class does not change after its definition.

    Callers share the result and must not modify it.
    """
    return cast("F", cache(read))  # mypy does not take a class for hashable


def declarations(kind: type, wanted: type[T] | tuple[type[T], ...]) -> dict[str, T]:
    """Return the class attributes of a type, by name, base classes first; a subclass replaces its base's."""
    attributes = {name: value for cls in reversed(kind.__mro__) for name, value in vars(cls).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, wanted)}


def require_plain(function: Any, what: str) -> None:
    """:raises UsageError: the function is async or a generator."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is async: statehold calls it and never awaits it, so its body would not run. Use def")
    if inspect.isgeneratorfunction(function):
        raise UsageError(f"{what} is a generator: its body would not run. Return nothing, and use no yield")
