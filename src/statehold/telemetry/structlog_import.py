"""Imports structlog without rich, which it loads for tracebacks that statehold does not show. That takes 0.2 s."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from types import ModuleType


class _WithoutRich:
    """A finder that has no rich for one thread: an embedding program may import it on another one meanwhile."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """:raises ModuleNotFoundError: rich is imported by this thread."""
        if name == "rich" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@functools.cache
def import_structlog() -> ModuleType:
    """Return structlog. A program that has imported structlog or rich before keeps its tracebacks."""
    finder = _WithoutRich()
    sys.meta_path.insert(0, finder)
    try:
        import structlog
    finally:
        sys.meta_path.remove(finder)
    return structlog
