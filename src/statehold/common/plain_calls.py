"""Rejects functions that only return a coroutine or a generator when called: statehold would never run their body."""

from __future__ import annotations

import inspect
from typing import Any

from statehold.errors import UsageError


def require_plain(function: Any, what: str) -> None:
    """:raises UsageError: the function is async or a generator."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is async: statehold calls it and never awaits it, so its body would not run. Use def")
    if inspect.isgeneratorfunction(function):
        raise UsageError(f"{what} is a generator: its body would not run. Return nothing, and use no yield")
