"""Verifies everything that a restore needs: chunks, checksums, digests and the chain of commit records.

Damage is never raised. Every fault is reported with its topic and offset, and the verification continues if it can.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from statehold.errors import DamagedIncrement, PartitionError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Manifest
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents, chunks
from statehold.snapshot.inspect.survey import survey
from statehold.state import digest

_ATTEMPTS = 3


class VerifyFinding(msgspec.Struct, frozen=True):
    """A fault, which makes the result bad, or a note, which does not."""

    fault: bool
    topic: str
    partition: int
    #: Offset of the record; -1 if the finding is not about a single record.
    offset: int
    text: str

    def __str__(self) -> str:
        at = f"@{self.offset}" if self.offset >= 0 else ""
        return f"{self.topic}[{self.partition}]{at}: {self.text}"


class FullVerdict(msgspec.Struct, frozen=True):
    """Result for one full snapshot."""

    offset: int
    n: int
    through: int
    chunks: int
    keys: int
    maker: str
    good: bool
    #: Transaction whose commit record has the same digest; -1 if none has.
    proven_at: int


class PartitionVerification(msgspec.Struct):
    """Result for one partition.

    `transactions` is the number of transactions in the chain. `compared` is the number of commit records whose digest
    equals the one computed from the deltas.
    """

    partition: int
    position: int = -1
    n: int = -1
    keys: int = 0
    digest: str = ""
    transactions: int = 0
    compared: int = 0
    full_snapshots: list[FullVerdict] = []
    findings: list[VerifyFinding] = []

    @property
    def good(self) -> bool:
        return not any(finding.fault for finding in self.findings)


def verify(reader: Reader, place: Place, *, everything: bool = False) -> PartitionVerification:
    """Read and compare everything that is stored for a partition.

    :raises KafkaTrouble, RestoreTimeout: Kafka did not answer. :raises OutOfRange: the service truncated the topics in
        every attempt.
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
        self.verdict = PartitionVerification(place.partition)
        #: Digests of the commit records by transaction, to compare with full snapshots.
        self.commit_records: dict[int, bytes] = {}

    def run(self) -> PartitionVerification:
        seen = survey(self.reader, self.place, everything=self.everything)
        if seen.commit_record is not None:
            commit_record = seen.commit_record
            self.verdict.position, self.verdict.n = commit_record.position(self.place.input), commit_record.n
            self.verdict.keys, self.verdict.digest = commit_record.keys, digest.show(commit_record.digest)
        self._walk()
        if seen.trouble and not any(finding.text in seen.trouble for finding in self.verdict.findings):
            self._fault(self.names.changelog, -1, seen.trouble)
        whole = False
        for full in reversed(seen.full_snapshots):  # oldest first, because its fold covers the most deltas
            whole |= self._full(full, to_the_end=not whole)
        if not whole and seen.commit_record is not None:
            self._fold(Contents(), None)
        return self.verdict

    def _walk(self) -> None:
        """Check the chain: transaction numbers, producer sessions, state generations, positions."""
        position = -1
        for increment in self._increments(-1, None):
            commit_record = increment.commit_record
            self.verdict.transactions += 1
            self.commit_records[commit_record.n] = commit_record.digest
            if (
                position >= 0
                and commit_record.start >= 0
                and commit_record.start != position
                and increment.replacement is None
            ):
                self._fault(
                    self.names.changelog,
                    increment.commit_record_offset,
                    f"commit record {commit_record.n} begins at position {commit_record.start}, the previous one "
                    f"ended at {position}",
                )
            position = commit_record.position(self.place.input)

    def _full(self, full: Full, *, to_the_end: bool) -> bool:
        """Check a full snapshot. Return True if the deltas after it were folded up to the end."""
        made = full.manifest
        if made is None:
            gone = full.finding.startswith("gone")
            (self._note if gone else self._fault)(self.names.snapshot, full.offset, full.finding)
            return False
        if full.finding:
            self._note(self.names.snapshot, full.offset, f"a restore cannot use it: {full.finding}")
            return False
        before = len(self.verdict.findings)
        contents = self._chunks(full.offset, made)
        proven = -1
        if contents is not None:
            proven = self._proven_at_once(full.offset, made, contents)
            if to_the_end or made.first != made.through:
                proven = max(proven, self._fold(contents, made, to_the_end=to_the_end))
        good = not any(finding.fault for finding in self.verdict.findings[before:])
        self.verdict.full_snapshots.append(
            FullVerdict(full.offset, made.first, made.through, len(made.checksums), made.keys, made.maker, good, proven)
        )
        return contents is not None and to_the_end

    def _chunks(self, offset: int, made: Manifest) -> Contents | None:
        contents, size, whole = Contents(), 0, True
        try:
            for piece in chunks(self.reader, self.place, made, offset):
                if piece.changes is None:
                    whole = False
                    self._fault(
                        self.names.snapshot,
                        piece.offset,
                        f"chunk {piece.i} of {len(made.checksums)} of the full snapshot at {offset}: {piece.fault}",
                    )
                else:
                    contents.apply(piece.changes)
                    size += len(piece.changes.keys)
        except DamagedIncrement as error:
            whole = False
            self._fault(error.topic, error.position, f"in the full snapshot at {offset}: {_without_place(error)}")
        # A fuzzy one that shares chunks names the keys of its first slice.
        keys = contents.keys if made.shared and made.first != made.through else made.keys
        if whole and (contents.keys, size) != (keys, made.loads):
            rows = f" in {size} rows, its manifest has {made.keys} in {made.loads}" if made.shared else ""
            rows = rows or f", its manifest has {made.keys}"
            self._fault(self.names.snapshot, offset, f"it holds {contents.keys} keys{rows}")
        return contents if whole else None

    def _proven_at_once(self, offset: int, made: Manifest, contents: Contents) -> int:
        """Compare a full snapshot of one transaction with its manifest and with that transaction's commit record."""
        if made.first != made.through:
            return -1
        computed = digest.to_bytes(contents.digest)
        recorded = (("its manifest", made.digest), (f"commit record {made.first}", self.commit_records.get(made.first)))
        for what, expected in recorded:
            if expected is not None and expected != computed:
                self._fault(
                    self.names.snapshot,
                    offset,
                    f"its chunks have digest {digest.show(computed)}, {what} has {digest.show(expected)}",
                )
                return -1
        return made.first if made.first in self.commit_records else -1

    def _fold(self, contents: Contents, made: Manifest | None, *, to_the_end: bool = True) -> int:
        """Apply the deltas after a full snapshot and compare each digest. Return the first equal transaction, or -1."""
        first = -1
        chain = Chain(self.names.changelog, self.partition, crossing=True)
        if made is not None:
            chain.last, chain.lineage = made.first, made.lineage
        for increment in self._increments(made.increment if made else -1, chain, reported=True):
            commit_record = increment.commit_record
            if (
                made is None
                and chain.first == commit_record.n
                and commit_record.n > 0
                and increment.replacement is None
            ):
                return -1  # no full snapshot and no first transaction: `survey` has reported it
            if increment.replacement is not None and (increment.replacement.base is not None or made is not None):
                return first
            if not commit_record.delta or (made is not None and commit_record.reach > made.first):
                continue
            contents.apply_parts(increment.parts)
            if made is not None and commit_record.n < made.through:
                continue
            if not self._equal(contents, increment.commit_record_offset, commit_record):
                return first
            self.verdict.compared += 1
            first = commit_record.n if first < 0 else first
            if not to_the_end:
                return first
        return first

    def _equal(self, contents: Contents, offset: int, commit_record: CommitRecord) -> bool:
        computed = digest.to_bytes(contents.digest)
        if (computed, contents.keys) == (commit_record.digest, commit_record.keys):
            return True
        self._fault(
            self.names.changelog,
            offset,
            f"commit record {commit_record.n} is the first that differs: snapshot and deltas give {contents.keys} "
            f"keys with digest {digest.show(computed)}, the record has {commit_record.keys} with "
            f"{digest.show(commit_record.digest)}",
        )
        return False

    def _increments(self, start: int, chain: Chain | None, *, reported: bool = False) -> Iterator[Increment]:
        """Yield transactions up to a break of the chain, whose fault is reported once."""
        try:
            yield from past.increments(self.reader, self.place, start, chain)
        except PartitionError as error:
            if not reported:
                self._fault(error.topic, error.position, _without_place(error))
        except frame.BadFrame as error:
            if not reported:
                self._fault(self.names.changelog, -1, f"a record is unreadable: {error}")

    def _fault(self, topic: str, offset: int, text: str) -> None:
        self.verdict.findings.append(VerifyFinding(True, topic, self.partition, offset, text))

    def _note(self, topic: str, offset: int, text: str) -> None:
        self.verdict.findings.append(VerifyFinding(False, topic, self.partition, offset, text))


def _without_place(error: PartitionError) -> str:
    return str(error).partition(": ")[2]
