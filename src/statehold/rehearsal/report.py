"""What a rehearsal found: the documents of `statehold rehearse --json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

Verdict = Literal["equal", "different", "unreadable"]
Kind = Literal["outputs", "table", "dead letters", "effects", "sink", "failures", "stored values", "state"]
How = Literal["changed", "missing", "added"]

#: fields that a comparison names; a map's keys are paths, too, and may be any number
_FIELDS: Final = 200
#: stands for the others
OTHER_FIELDS: Final = "(other fields)"

#: the order of the kinds in a report
KINDS: tuple[Kind, ...] = (
    "stored values",
    "failures",
    "outputs",
    "table",
    "dead letters",
    "effects",
    "sink",
    "state",
)


class Compared(msgspec.Struct):
    """The comparison of one topic, table, or kind of result."""

    kind: Kind
    #: the topic or table; the kind again for the others
    name: str
    #: results of both that were compared; of a table its keys that either wrote
    compared: int = 0
    #: both have it, with other content
    changed: int = 0
    #: only the live service has it
    missing: int = 0
    #: only the new code has it
    added: int = 0
    #: keys of a table that differed for a time; results without a counterpart to compare with
    passing: int = 0
    not_compared: int = 0
    #: by field: in how many of the changed ones it differs
    fields: dict[str, int] = {}

    @property
    def differ(self) -> int:
        return self.changed + self.missing + self.added

    @property
    def equal(self) -> bool:
        return not self.differ and not self.passing

    def add(self, how: How, fields: Iterable[str] = (), count: int = 1) -> None:
        """Count results that differ in these fields."""
        setattr(self, how, getattr(self, how) + count)
        for field in fields:
            name = field if field in self.fields or len(self.fields) < _FIELDS else OTHER_FIELDS
            self.fields[name] = self.fields.get(name, 0) + 1


class DifferenceExample(msgspec.Struct, frozen=True):
    """One difference, both sides as JSON; an absent side is None and named by `how`."""

    kind: Kind
    name: str
    how: How
    #: coordinates of the record, such as orders[0]@1200, or of the records that it may be
    record: str
    key: Any
    fields: list[str]
    live: Any
    new: Any


class RehearsedPartition(msgspec.Struct):
    """One partition: from which state to where, and what was compared."""

    partition: int
    verdict: Verdict = "equal"
    #: transaction and position of the state, and of the end
    from_n: int = -1
    start: int = -1
    to_n: int = -1
    end: int = -1
    #: keys of the state that the new code decoded
    keys: int = 0
    records: int = 0
    transactions: int = 0
    #: why the new code cannot take over the state
    unreadable: list[str] = []
    compared: list[Compared] = []
    examples: list[DifferenceExample] = []
    #: by --ignore: the values that were equal because of it
    ignored: dict[str, int] = {}
    notes: list[str] = []
    #: seconds in the handler, of the whole partition, and the process's resident bytes at the end
    handler_seconds: float = 0.0
    seconds: float = 0.0
    memory: int = 0
    #: of the run that --against names; 0 without
    old_handler_seconds: float = 0.0
    old_memory: int = 0

    def of(self, kind: Kind, name: str = "") -> Compared:
        """Return the comparison of this topic or table; a new one at the first call."""
        name = name or kind
        for each in self.compared:
            if (each.kind, each.name) == (kind, name):
                return each
        self.compared.append(Compared(kind, name))
        return self.compared[-1]

    def conclude(self) -> None:
        """Set the verdict."""
        self.compared.sort(key=lambda each: (KINDS.index(each.kind), each.name))
        if self.unreadable:
            self.verdict = "unreadable"
        elif not all(each.equal for each in self.compared):
            self.verdict = "different"


def verdict_of(partitions: list[RehearsedPartition]) -> Verdict:
    """Return the verdict of all partitions: the worst."""
    found = {each.verdict for each in partitions}
    if "unreadable" in found:
        return "unreadable"
    return "different" if "different" in found else "equal"
