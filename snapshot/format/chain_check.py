"""Checks the chain of transactions on the changelog topic record by record (rule T1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

import msgspec

from statehold.errors import DamagedIncrement, TornTransaction
from statehold.snapshot.format.records import Chunk, CommitRecord, Header, Manifest, Part, Record, StateReplacement

_NAMES: Final[dict[type, str]] = {
    Header: "header",
    StateReplacement: "state-replacement record",
    Part: "changelog chunk",
    CommitRecord: "commit record",
    Chunk: "snapshot chunk",
    Manifest: "manifest",
}


class Increment(msgspec.Struct, frozen=True):
    """A complete transaction: its parts in order, its commit record, and the offsets of header and commit record.

    `adopt` is set if the transaction begins a new state generation: the state is then the full snapshot that it names,
    or empty.
    """

    offset: int
    parts: tuple[Part, ...]
    commit_record: CommitRecord
    commit_record_offset: int
    replacement: StateReplacement | None = None


@dataclass(slots=True)
class Chain:
    """Takes records in log order and returns complete transactions; anything else is a typed error.

    `last` is the number of the last transaction that the state already holds: the chain skips records up to it. With
    None it starts at the first record. A change of state generation is damage, because no fold crosses one (rule S6).
    Only with `crossing`, for tools that show the history, may a state-replacement record begin another state
    generation.
    """

    topic: str
    partition: int
    last: int | None = None
    lineage: str | None = None
    crossing: bool = False
    _digest: bytes | None = None
    _replacement: StateReplacement | None = None
    _header: tuple[int, Header] | None = None
    _parts: list[Part] = field(default_factory=list)
    _started: bool = False
    #: the number of the first transaction that this chain returned
    first: int = -1

    def feed(self, offset: int, record: Record) -> Increment | None:
        """Check the next record. Return the transaction that it completes, if any.

        Do not use the chain after an error.

        :raises TornTransaction, DamagedIncrement: the error names the offset.
        """
        if not isinstance(record, (Header, StateReplacement, Part, CommitRecord)):
            self._damaged(offset, f"a {_NAMES[type(record)]} does not belong on the changelog topic")
        if not self._started and self.last is not None and record.n <= self.last:
            return None  # only before the first record that counts: a number that returns later is damage
        self._started = True
        if isinstance(record, Header):
            self._open(offset, record)
            return None
        if self._header is None:
            self._torn(offset, f"{_NAMES[type(record)]} {record.n} has no transaction header: a torn abort")
        opened, header = self._header
        if (header.n, header.attempt) != (record.n, record.attempt):
            self._torn(
                offset,
                f"{_NAMES[type(record)]} {record.n} of producer session {record.attempt} follows "
                f"header {header.n} of producer session {header.attempt}",
            )
        if isinstance(record, StateReplacement):
            self._take_replacement(offset, record)
            return None
        if self._replacement is None and self.lineage is not None and header.lineage != self.lineage:
            self._damaged(
                offset, f"state generation {header.lineage} follows {self.lineage} without a state-replacement record"
            )
        if isinstance(record, Part):
            if record.k != len(self._parts):
                self._damaged(offset, f"chunk {record.k} of transaction {record.n} follows {len(self._parts) - 1}")
            self._parts.append(record)
            return None
        self._check_commit_record(offset, header, record)
        increment = Increment(opened, tuple(self._parts), record, offset, self._replacement)
        self.first = record.n if self.first < 0 else self.first
        self.last, self.lineage, self._digest = record.n, record.lineage, record.digest
        self._header, self._parts, self._replacement = None, [], None
        return increment

    def finish(self, offset: int) -> None:
        """Check the end of the log: a header without a commit record is a torn commit."""
        if self._header is not None:
            self._torn(offset, _unmarked(*self._header))

    def _open(self, offset: int, header: Header) -> None:
        if self._header is not None:
            self._torn(offset, _unmarked(*self._header))
        if self.last is not None and header.n != self.last + 1:
            self._damaged(offset, f"transaction {header.n} follows {self.last}: a hole in the chain")
        if self.lineage is not None and header.lineage != self.lineage and not self.crossing:
            self._damaged(offset, f"state generation {header.lineage} follows {self.lineage}")
        self._header = offset, header

    def _take_replacement(self, offset: int, replacement: StateReplacement) -> None:
        """Check that the record follows its header, begins another state generation and continues from the state."""
        if self._parts or self._replacement is not None:
            self._damaged(
                offset, f"the state-replacement record of transaction {replacement.n} does not follow its header"
            )
        if self.lineage is not None and replacement.old_lineage != self.lineage:
            self._damaged(
                offset,
                f"it replaces state generation {replacement.old_lineage or 'none'}, the chain has {self.lineage}",
            )
        if self._digest is not None and replacement.old_digest != self._digest:
            self._damaged(offset, f"it replaces another state than transaction {self.last} left")
        if replacement.lineage == replacement.old_lineage:
            self._damaged(offset, f"it replaces state generation {replacement.lineage} by itself")
        self._replacement = replacement

    def _check_commit_record(self, offset: int, header: Header, commit_record: CommitRecord) -> None:
        """Check that the commit record agrees with its header and state-replacement record, and counts all parts."""
        replacement = self._replacement
        if commit_record.lineage != header.lineage or (
            replacement is not None and replacement.lineage != header.lineage
        ):
            self._damaged(offset, f"transaction {commit_record.n} names several state generations")
        if replacement is not None and (
            commit_record.digest,
            commit_record.positions,
            commit_record.parts,
            commit_record.adopted,
        ) != (
            replacement.digest,
            replacement.positions,
            0,
            replacement.n,
        ):
            self._damaged(
                offset, f"commit record {commit_record.n} disagrees with the state-replacement record before it"
            )
        if commit_record.parts != len(self._parts):
            self._torn(
                offset,
                f"commit record {commit_record.n} counts {commit_record.parts} chunks, the log holds "
                f"{len(self._parts)}",
            )

    def _torn(self, offset: int, finding: str) -> NoReturn:
        raise TornTransaction(
            f"{finding}. Outputs of that transaction may be lost or duplicated. Nothing was changed. Next: see "
            f"TornTransaction in the runbook, and `statehold repair rebase --help`",
            topic=self.topic,
            partition=self.partition,
            position=offset,
        )

    def _damaged(self, offset: int, finding: str) -> NoReturn:
        raise DamagedIncrement(
            f"{finding}. Nothing was changed. Next: see DamagedIncrement in the runbook, and `statehold repair rebase "
            f"--help`",
            topic=self.topic,
            partition=self.partition,
            position=offset,
        )


def _unmarked(offset: int, header: Header) -> str:
    writer = header.writer
    by = f" by {writer.instance} on {writer.host} (statehold {writer.version})" if writer.version else ""
    return f"transaction header {header.n} at offset {offset}{by} has no commit record: a torn commit"
