"""Findings of checks, and the exit code of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from statehold.common.exit_codes import Answer

if TYPE_CHECKING:
    from statehold.ops.doctor.case import Case


class Level(StrEnum):
    """The result of a finding. UNKNOWN: the check could not run."""

    PASS = "PASS"  # noqa: S105 - no password
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report: check, subject, result, reason, and the exact command that fixes it."""

    check: str
    about: str
    level: Level
    reason: str
    fix: str = ""


class Check(Protocol):
    """One check. `looks_at`, `fails` and `warns` are its row in docs/reference/doctor.md."""

    name: ClassVar[str]
    looks_at: ClassVar[str]
    #: conditions of FAIL and WARN, '-' for never
    fails: ClassVar[str]
    warns: ClassVar[str]

    def look(self, case: Case) -> Iterator[Finding]:
        """Yield every finding that is not PASS; an empty result means PASS.

        :raises StateholdError: it cannot run, which is UNKNOWN with that reason.
        """
        ...


class FindingsOf:
    """Creates the findings of one check."""

    def __init__(self, check: type[Check] | Check) -> None:
        self._name = check.name

    def passed(self, about: str, reason: str) -> Finding:
        return Finding(self._name, about, Level.PASS, reason)

    def warned(self, about: str, reason: str, fix: str) -> Finding:
        return Finding(self._name, about, Level.WARN, reason, fix)

    def failed(self, about: str, reason: str, fix: str) -> Finding:
        return Finding(self._name, about, Level.FAIL, reason, fix)

    def unknown(self, about: str, reason: str, fix: str = "") -> Finding:
        return Finding(self._name, about, Level.UNKNOWN, reason, fix)


def answer(findings: Iterable[Finding]) -> Answer:
    """Return the exit code of the worst result: FAIL, then UNKNOWN, then WARN."""
    levels = {each.level for each in findings}
    for level, code in ((Level.FAIL, Answer.FAILED), (Level.UNKNOWN, Answer.UNKNOWN), (Level.WARN, Answer.WARNED)):
        if level in levels:
            return code
    return Answer.YES
