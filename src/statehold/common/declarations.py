"""What a class declares in its body: a handler's tables, outputs, sinks and references."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def declarations(kind: type, wanted: type[T]) -> dict[str, T]:
    """The class attributes of a type, by name, base classes first; a subclass's own replaces its base's."""
    attributes = {name: value for cls in reversed(kind.__mro__) for name, value in vars(cls).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, wanted)}
