"""The chain of increments, checked record by record (rule T1): pure, fed by restore, verify and truncation alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from statehold.errors import DamagedIncrement, TornTransaction
from statehold.snapshot.format.records import Adopt, Header, Mark, Part, Record


@dataclass(frozen=True, slots=True)
class Increment:
    """One whole transaction: where its header lies, its parts in order, its mark and the mark's offset.

    With `adopt` a new lineage begins here: the state is the full that it names, or empty, and nothing before counts.
    """

    offset: int
    parts: tuple[Part, ...]
    mark: Mark
    mark_offset: int
    adopt: Adopt | None = None


@dataclass(slots=True)
class Chain:
    """Takes records in log order and gives back whole increments; anything else is a typed finding.

    `last` is the number of the transaction that is already in the state; records up to it are passed over. None takes
    whatever comes first. Another lineage is damage: no fold crosses one (rule S6). Only with `crossing`, for whoever
    tells the history, an adopt record may begin one, and must fit what came before it.
    """

    topic: str
    partition: int
    last: int | None = None
    lineage: str | None = None
    crossing: bool = False
    _digest: bytes | None = None
    _adopt: Adopt | None = None
    _header: tuple[int, Header] | None = None
    _parts: list[Part] = field(default_factory=list)
    _started: bool = False
    #: the first transaction that this chain gave back
    first: int = -1

    def feed(self, offset: int, record: Record) -> Increment | None:
        """:raises TornTransaction, DamagedIncrement: naming the offset; the chain must not be used afterwards."""
        if not isinstance(record, (Header, Adopt, Part, Mark)):
            self._damaged(offset, f"a {type(record).__name__.lower()} does not belong on the increment topic")
        if self._passed_over(record):
            return None
        if isinstance(record, Header):
            self._open(offset, record)
            return None
        opened = self._expect_open(offset, record)
        if isinstance(record, Adopt):
            self._take_adopt(offset, record)
            return None
        self._check_lineage(offset, record)
        if isinstance(record, Part):
            if record.k != len(self._parts):
                self._damaged(offset, f"part {record.k} of transaction {record.n} follows part {len(self._parts) - 1}")
            self._parts.append(record)
            return None
        if record.parts != len(self._parts):
            self._torn(offset, f"mark {record.n} counts {record.parts} parts, {len(self._parts)} are there")
        increment = Increment(opened, tuple(self._parts), record, offset, self._adopt)
        self.first = record.n if self.first < 0 else self.first
        self.last, self.lineage, self._digest = record.n, record.lineage, record.digest
        self._header, self._parts, self._adopt = None, [], None
        return increment

    def finish(self, offset: int) -> None:
        """The log ends here: a header that is still open is a torn commit."""
        if self._header is not None:
            self._torn(offset, _unmarked(*self._header))

    def _passed_over(self, record: Header | Adopt | Part | Mark) -> bool:
        """Only before the first record that counts: a number that comes back later is damage."""
        if not self._started and self.last is not None and record.n <= self.last:
            return True
        self._started = True
        return False

    def _open(self, offset: int, header: Header) -> None:
        if self._header is not None:
            self._torn(offset, _unmarked(*self._header))
        if self.last is not None and header.n != self.last + 1:
            self._damaged(offset, f"transaction {header.n} follows {self.last}: a hole in the chain")
        if self.lineage is not None and header.lineage != self.lineage and not self.crossing:
            self._damaged(offset, f"lineage {header.lineage} follows {self.lineage}")
        self._header = offset, header

    def _take_adopt(self, offset: int, adopt: Adopt) -> None:
        """It comes first in its transaction, begins another lineage, and goes on from the state that was."""
        if self._parts or self._adopt is not None:
            self._damaged(offset, f"the adopt record of transaction {adopt.n} does not follow its header")
        if self.lineage is not None and adopt.old_lineage != self.lineage:
            self._damaged(offset, f"adopts lineage {adopt.old_lineage or 'none'}, the chain is of {self.lineage}")
        if self._digest is not None and adopt.old_digest != self._digest:
            self._damaged(offset, f"adopts another state than transaction {self.last} left")
        if adopt.lineage == adopt.old_lineage:
            self._damaged(offset, f"adopts lineage {adopt.lineage} anew")
        self._adopt = adopt

    def _check_lineage(self, offset: int, record: Part | Mark) -> None:
        """What follows the header: the lineage goes on, or an adopt record has begun this one and says the same."""
        assert self._header is not None
        lineage, adopt = self._header[1].lineage, self._adopt
        if adopt is None and self.lineage is not None and lineage != self.lineage:
            self._damaged(offset, f"lineage {lineage} follows {self.lineage} without an adopt record")
        if not isinstance(record, Mark):
            return
        if record.lineage != lineage or (adopt is not None and adopt.lineage != lineage):
            self._damaged(offset, f"transaction {record.n} names several lineages")
        if adopt is not None and (record.digest, record.positions, record.parts, record.adopted) != (
            adopt.digest,
            adopt.positions,
            0,
            adopt.n,
        ):
            self._damaged(offset, f"mark {record.n} says something else than the adopt record before it")

    def _expect_open(self, offset: int, record: Adopt | Part | Mark) -> int:
        if self._header is None:
            self._torn(offset, f"{type(record).__name__.lower()} {record.n} has no header: a torn abort")
        opened, header = self._header
        if (header.n, header.attempt) != (record.n, record.attempt):
            self._torn(
                offset,
                f"{type(record).__name__.lower()} {record.n} of attempt {record.attempt} follows "
                f"header {header.n} of attempt {header.attempt}",
            )
        return opened

    def _torn(self, offset: int, finding: str) -> NoReturn:
        raise TornTransaction(
            f"{finding}. Outputs of that transaction may be lost or doubled; nothing was changed. "
            f"See docs/runbook/errors.md#torntransaction, and `statehold repair rebase --help`",
            topic=self.topic,
            partition=self.partition,
            position=offset,
        )

    def _damaged(self, offset: int, finding: str) -> NoReturn:
        raise DamagedIncrement(
            f"{finding}. Nothing was changed. See docs/runbook/errors.md#damagedincrement, and `statehold repair "
            f"rebase --help`",
            topic=self.topic,
            partition=self.partition,
            position=offset,
        )


def _unmarked(offset: int, header: Header) -> str:
    writer = header.writer
    by = f" by {writer.instance} on {writer.host} (statehold {writer.version})" if writer.version else ""
    return f"header {header.n} at offset {offset}{by} has no mark: a torn commit"
