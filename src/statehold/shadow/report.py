"""What a shadow has found so far: the documents of `statehold shadow --json` and of its ops server."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from statehold.rehearsal.report import Compared, RehearsedPartition, verdict_of

ShadowVerdict = Literal["equal", "different", "unreadable", "incomplete"]
Phase = Literal["starting", "following", "waiting", "unreadable"]
#: most notes and examples of a partition; the first half and the newest ones stay
_NOTES: Final = 20
_EXAMPLES: Final = 100


class ShadowedPartition(RehearsedPartition):
    """One partition. Its numbers are those of all starts."""

    phase: Phase = "starting"
    #: why it does not follow
    why: str = ""
    #: how often it started from a stored state
    starts: int = 0
    #: transactions of the service between an end and the next start, which were not compared
    passed_over: int = 0
    #: seconds since everything that the service had committed was compared; -1: never
    age: float = -1.0

    def add(self, part: RehearsedPartition) -> None:
        """Add what was found between a start and its end."""
        if self.from_n < 0:
            self.from_n, self.start = part.from_n, part.start
        self.to_n, self.end, self.keys = part.to_n, part.end, part.keys
        self.records += part.records
        self.transactions += part.transactions
        self.handler_seconds += part.handler_seconds
        self.unreadable = part.unreadable
        for each in part.compared:
            _add(self.of(each.kind, each.name), each)
        self.examples = [*self.examples, *part.examples][:_EXAMPLES]
        for text in part.notes:
            self.note(text)

    def note(self, text: str) -> None:
        self.notes = [*self.notes, text]
        if len(self.notes) > _NOTES:
            del self.notes[_NOTES // 2]


class ShadowReport(msgspec.Struct, frozen=True):
    """All partitions at one time."""

    verdict: ShadowVerdict
    ended: bool
    #: since the start of the shadow
    seconds: float
    #: resident bytes of the process
    memory: int
    #: by --ignore: the values that were equal because of it
    ignored: dict[str, int]
    partitions: list[ShadowedPartition]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def differ(self) -> int:
        """Number of results that differ or differed for a time."""
        return sum(each.differ + each.passing for found in self.partitions for each in found.compared)


def shadow_verdict(partitions: list[ShadowedPartition]) -> ShadowVerdict:
    """Return the verdict of all partitions. Nothing is equal if no record was compared, or a partition never began."""
    found = verdict_of([*partitions])
    complete = any(each.transactions for each in partitions) and all(each.starts for each in partitions)
    return "incomplete" if found == "equal" and not complete else found


def _add(sum_: Compared, part: Compared) -> None:
    for name in ("compared", "changed", "missing", "added", "passing", "not_compared"):
        setattr(sum_, name, getattr(sum_, name) + getattr(part, name))
    fields: dict[str, Any] = part.fields
    for field, count in fields.items():
        sum_.fields[field] = sum_.fields.get(field, 0) + count
