"""Reads the declarations in the body of a class: a handler's tables, outputs, sinks and references."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
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


def class_attributes(kind: type, wanted: type[T] | tuple[type[T], ...]) -> dict[str, T]:
    """Return the class attributes of a type, by name, base classes first; a subclass replaces its base's."""
    attributes = {name: value for cls in reversed(kind.__mro__) for name, value in vars(cls).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, wanted)}


def require_plain(function: Any, what: str) -> None:
    """:raises UsageError: the function is async or a generator."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is async: statehold calls it and never awaits it, so its body would not run. Use def")
    require_no_generator(function, what)


def require_no_generator(function: Any, what: str) -> None:
    """:raises UsageError: the function is a generator, async or not."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is a generator: its body would not run. Return nothing, and use no yield")


def require_parameters(function: Callable[..., object], name: str, passed: Sequence[str]) -> None:
    """:raises UsageError: a call with these positional arguments would fail."""
    if not callable(function):
        raise UsageError(f"{name} is {function!r:.100}, and it has to be a function of ({', '.join(passed)})")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C may have none
        return
    try:
        signature.bind(*passed)
    except TypeError as error:
        called = name.rpartition(".")[2]
        called = called if called.isidentifier() else getattr(function, "__name__", "")
        advice = f"def {called}({', '.join(passed)})" if called.isidentifier() else f"lambda {', '.join(passed)}: ..."
        raise UsageError(
            f"{name} takes {signature}, and statehold calls it with {len(passed)} argument{'s' * (len(passed) != 1)}. "
            f"Next: {advice}"
        ) from error
