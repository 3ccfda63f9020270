"""A string that does not show itself."""

from __future__ import annotations

from typing import Final

REDACTED: Final = "<redacted>"


class Secret:
    """A password or key. `reveal()` is the only way to its text; repr, str and format show `<redacted>`."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Give it to a client, never to a log."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return REDACTED if self._text else "''"

    __str__ = __repr__
