"""Is everything there that a restore would need, and does it say the same: chunks, checksums, digests, the chain.

Nothing is raised for damage: every fault is told, with its topic and offset, and the looking goes on where it can.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from statehold.errors import PartitionError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import digest, frame
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest, Mark
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents, chunks
from statehold.snapshot.inspect.survey import survey

_ATTEMPTS = 3


class Finding(msgspec.Struct, frozen=True):
    """Something to know. A fault makes the verdict bad; anything else is told and is no damage."""

    fault: bool
    topic: str
    partition: int
    #: of the record on that topic; -1 where it is about no single one
    offset: int
    text: str

    def __str__(self) -> str:
        at = f"@{self.offset}" if self.offset >= 0 else ""
        return f"{self.topic}[{self.partition}]{at}: {self.text}"


class FullVerdict(msgspec.Struct, frozen=True):
    offset: int
    n: int
    through: int
    chunks: int
    keys: int
    maker: str
    good: bool
    #: the transaction at whose mark its digest was found equal; -1: at none
    proven_at: int


class Verdict(msgspec.Struct):
    """One partition. `transactions` is how many of the chain were walked, `compared` at how many marks a digest was
    computed from the deltas and found equal."""

    partition: int
    position: int = -1
    n: int = -1
    keys: int = 0
    digest: str = ""
    transactions: int = 0
    compared: int = 0
    fulls: list[FullVerdict] = []
    findings: list[Finding] = []

    @property
    def good(self) -> bool:
        return not any(finding.fault for finding in self.findings)


def verify(reader: Reader, place: Place, *, everything: bool = False) -> Verdict:
    """Read all that is kept of a partition and compare it.

    :raises KafkaTrouble, RestoreTimeout: Kafka did not answer. :raises OutOfRange: truncated again and again meanwhile.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _Verification(reader, place, everything).run()
        except OutOfRange:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


class _Verification:
    def __init__(self, reader: Reader, place: Place, everything: bool) -> None:
        self.reader, self.place, self.everything = reader, place, everything
        self.names, self.partition = place.names, place.partition
        self.verdict = Verdict(place.partition)
        #: digests of the marks, for fulls of one transaction
        self.marks: dict[int, bytes] = {}

    def run(self) -> Verdict:
        seen = survey(self.reader, self.place, everything=self.everything)
        if seen.trouble:
            self._fault(self.names.changelog, -1, seen.trouble)
        if seen.mark is not None:
            mark = seen.mark
            self.verdict.position, self.verdict.n = mark.positions.get(self.place.input, -1), mark.n
            self.verdict.keys, self.verdict.digest = mark.keys, digest.show(mark.digest)
        self._walk()
        whole = False
        for full in reversed(seen.fulls):  # oldest first: the fold from it covers the most
            whole |= self._full(full, to_the_end=not whole)
        if not whole and seen.mark is not None:
            self._fold(Contents(), None)
        return self.verdict

    def _walk(self) -> None:
        """The chain alone: numbers, attempts, lineages, positions."""
        position = -1
        for increment in self._increments(-1, None):
            mark = increment.mark
            self.verdict.transactions += 1
            self.marks[mark.n] = mark.digest
            if position >= 0 and mark.start >= 0 and mark.start != position and increment.adopt is None:
                self._fault(
                    self.names.changelog,
                    increment.mark_offset,
                    f"mark {mark.n} goes on from position {mark.start}, the one before it ended at {position}",
                )
            position = mark.positions.get(self.place.input, -1)

    def _full(self, full: Full, *, to_the_end: bool) -> bool:
        """True when the chain was folded from it to the end."""
        made = full.manifest
        if made is None:
            gone = full.finding.startswith("gone")
            (self._note if gone else self._fault)(self.names.snapshot, full.offset, full.finding)
            return False
        if full.finding:
            self._note(self.names.snapshot, full.offset, f"cannot be a base: {full.finding}")
            return False
        before = len(self.verdict.findings)
        contents = self._chunks(full.offset, made)
        proven = -1
        if contents is not None:
            proven = self._proven_at_once(full.offset, made, contents)
            if to_the_end or made.first != made.through:
                proven = max(proven, self._fold(contents, made, to_the_end=to_the_end))
        good = not any(finding.fault for finding in self.verdict.findings[before:])
        self.verdict.fulls.append(
            FullVerdict(full.offset, made.first, made.through, len(made.checksums), made.keys, made.maker, good, proven)
        )
        return contents is not None and to_the_end

    def _chunks(self, offset: int, made: Manifest) -> Contents | None:
        contents, size, whole = Contents(), 0, True
        for piece in chunks(self.reader, self.place, made, offset):
            if piece.changes is None:
                whole = False
                self._fault(
                    self.names.snapshot,
                    piece.offset,
                    f"chunk {piece.i} of {len(made.checksums)} of the full at {offset}: {piece.fault}",
                )
            else:
                contents.apply(piece.changes)
                size += len(piece.changes.keys)
        if whole and (contents.keys, size) != (made.keys, made.keys):
            self._fault(self.names.snapshot, offset, f"holds {contents.keys} keys, its manifest says {made.keys}")
        return contents if whole else None

    def _proven_at_once(self, offset: int, made: Manifest, contents: Contents) -> int:
        """A full of one transaction is compared with its own digest and with that transaction's mark."""
        if made.first != made.through:
            return -1
        computed = digest.to_bytes(contents.digest)
        for what, expected in (("its manifest", made.digest), (f"mark {made.first}", self.marks.get(made.first))):
            if expected is not None and expected != computed:
                self._fault(
                    self.names.snapshot,
                    offset,
                    f"its chunks have digest {digest.show(computed)}, {what} says {digest.show(expected)}",
                )
                return -1
        return made.first if made.first in self.marks else -1

    def _fold(self, contents: Contents, made: Manifest | None, *, to_the_end: bool = True) -> int:
        """Apply the deltas after a full and compare the digest at each of their marks; the first that is equal."""
        first = -1
        chain = Chain(self.names.changelog, self.partition, crossing=True)
        if made is not None:
            chain.last, chain.lineage = made.first, made.lineage
        for increment in self._increments(made.increment if made else -1, chain, told=True):
            mark = increment.mark
            if made is None and chain.first == mark.n and mark.n > 0 and increment.adopt is None:
                return -1  # no full, and the beginning is gone: survey has told it
            if increment.adopt is not None and (increment.adopt.base is not None or made is not None):
                return first
            if not mark.delta or (made is not None and mark.reach > made.first):
                continue
            contents.apply_parts(increment.parts)
            if made is not None and mark.n < made.through:
                continue
            if not self._equal(contents, increment.mark_offset, mark):
                return first
            self.verdict.compared += 1
            first = mark.n if first < 0 else first
            if not to_the_end:
                return first
        return first

    def _equal(self, contents: Contents, offset: int, mark: Mark) -> bool:
        computed = digest.to_bytes(contents.digest)
        if (computed, contents.keys) == (mark.digest, mark.keys):
            return True
        self._fault(
            self.names.changelog,
            offset,
            f"at mark {mark.n} the fulls and deltas give {contents.keys} keys with digest {digest.show(computed)}, the "
            f"mark says {mark.keys} with {digest.show(mark.digest)}: the first transaction that differs",
        )
        return False

    def _increments(self, start: int, chain: Chain | None, *, told: bool = False) -> Iterator[Increment]:
        """Ends where the chain is broken; the fault is told once."""
        try:
            yield from past.increments(self.reader, self.place, start, chain)
        except PartitionError as error:
            if not told:
                self._fault(error.topic, error.position, str(error).partition(": ")[2])
        except frame.BadFrame as error:
            if not told:
                self._fault(self.names.changelog, -1, f"a record cannot be read: {error}")

    def _fault(self, topic: str, offset: int, text: str) -> None:
        self.verdict.findings.append(Finding(True, topic, self.partition, offset, text))

    def _note(self, topic: str, offset: int, text: str) -> None:
        self.verdict.findings.append(Finding(False, topic, self.partition, offset, text))
