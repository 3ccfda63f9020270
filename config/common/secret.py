"""Secrets: strings that repr, str and format do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

REDACTED: Final = "<redacted>"


class FileText(str):
    """The content of a file of the secrets directory when it was read; `file` may have changed since."""

    file: Path

    def __new__(cls, text: str, file: Path) -> Self:
        made = super().__new__(cls, text)
        made.file = file
        return made


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


class FileSecret(Secret):
    """A secret that is read from its file on each `reveal()`, because the file may have been replaced."""

    __slots__ = ("file",)

    def __init__(self, text: FileText) -> None:
        super().__init__(str(text))
        self.file = text.file

    def reveal(self) -> str:
        """Return the file's content, or the content at start if the file cannot be read or is empty."""
        try:
            text = self.file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return super().reveal()
        return text or super().reveal()
