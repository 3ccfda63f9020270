"""The error for wrong settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statehold.errors import StartError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One wrong setting: its dotted key, the cause or the allowed values, its origin, its value (redacted)."""

    key: str
    cause: str
    origin: str = ""
    value: str = ""

    def __str__(self) -> str:
        origin = f" ({self.origin})" if self.origin else ""
        value = f" = {self.value}" if self.value else ""
        return f"setting {self.key}{value}{origin}: {self.cause}"


class SettingsError(StartError):
    """Some settings are wrong; nothing was started. `problems` holds them, the text has a line for each."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
