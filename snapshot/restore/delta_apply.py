"""From a base to the newest state: the deltas after it, applied in order while every record of the chain is checked."""

from __future__ import annotations

from collections.abc import Iterator

from statehold.errors import DamagedIncrement, DigestMismatch
from statehold.messages.pinned_command import Pinned, Placed
from statehold.ports import Reader
from statehold.snapshot.format import digest, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import EntryDecoder, Header, Manifest, Mark
from statehold.snapshot.full import FullUnusable
from statehold.snapshot.restore.estimate import Workload
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.state import State


class Following:
    """Used once, for the state that a base was loaded into."""

    def __init__(self, reader: Reader, place: Place, state: State, decoder: EntryDecoder, progress: Progress) -> None:
        self._reader, self._place, self._progress = reader, place, progress
        self._state, self._decoder = state, decoder
        self._input, self._topic, self._partition = place.names.input, place.names.changelog, place.partition
        #: bytes of the increments that hold anything, keys in deltas, transactions
        self.unsaved_bytes = self.unsaved_keys = self.transactions = 0
        #: users' commands of the control topic that no delta holds: a replay handles them where they were
        self.pinned: list[Placed[Pinned]] = []

    def apply(self, mark: Mark, manifest: Manifest | None, *, replayed: bool) -> tuple[int, int]:
        """Apply what came after the base; the position of the newest state, and how many deltas it took.

        `replayed`: the chain is checked and nothing is applied.

        The digest is compared once, at the newest mark whose state this is: before the last slice of a fuzzy full the
        state is no transaction's (rule S1).
        """
        topic, applied = self._input, 0
        position = manifest.positions[topic] if manifest else -1
        expected = manifest.digest if manifest else b""
        for increment in self._increments(mark, manifest):
            self.transactions += 1
            if position < 0:
                position, expected = increment.mark.positions[topic], increment.mark.digest
            if replayed or not increment.mark.delta:
                self.pinned += [Placed(increment.mark.positions[topic], each) for each in increment.mark.pinned]
                continue
            self.pinned.clear()
            for part in increment.parts:
                for raw in part.entries:
                    changes = self._decoder.decode(raw)
                    self._state.load(changes)
                    self.unsaved_keys += len(changes.keys)
            applied, position, expected = applied + 1, increment.mark.positions[topic], increment.mark.digest
        self._progress.enter("digest")
        self._state.loaded()
        self._check_digest(expected)
        return position, applied

    def _increments(self, mark: Mark, manifest: Manifest | None) -> Iterator[Increment]:
        start, end = self._reader.bounds(self._topic, self._partition)
        chain = Chain(self._topic, self._partition)
        if manifest is not None:
            start = max(start, manifest.increment)
            chain.last, chain.lineage = manifest.first, manifest.lineage
        elif mark.adopted > 0:
            chain.last = mark.adopted - 1  # what came before is another lineage's (rule S6)
        self._progress.enter("increments", start, end)
        size, beheaded = 0, start > 0
        for batch in self._reader.read(self._topic, self._partition, start, end):
            for message in batch:
                data = message.value()
                record = records.unpack(data)
                if beheaded:
                    self._check_head(record, chain)
                    beheaded = False
                increment = chain.feed(message.offset() or 0, record)
                size += len(data)
                if increment is None:
                    continue
                if increment.parts or increment.mark.positions[self._input] != increment.mark.start:
                    self.unsaved_bytes += size
                size = 0
                if manifest is None and chain.first == increment.mark.n:
                    self._check_beginning(increment)
                yield increment
        chain.finish(end)
        if chain.last is None or chain.last < mark.n:
            raise damaged(self._place, f"the chain ends with transaction {chain.last}, the last mark is {mark.n}")

    def _check_head(self, record: records.Record, chain: Chain) -> None:
        """A log that somebody has cut within a transaction is no torn one."""
        n = getattr(record, "n", 0)
        if not isinstance(record, Header) and (chain.last is None or n > chain.last):
            raise FullUnusable(f"the log begins in the midst of transaction {n}: what was before is gone")

    def _check_beginning(self, increment: Increment) -> None:
        """Without a full all must be there from an empty state on: the genesis, or an adopt record without a base."""
        n, adopt = increment.mark.n, increment.adopt
        if adopt is not None and adopt.base is not None:
            raise FullUnusable(f"adopt record {n} names a full that the deltas lead on from")
        if n > 0 and adopt is None:
            raise FullUnusable(f"the deltas begin with transaction {n}: what was before is gone")

    def _check_digest(self, expected: bytes) -> None:
        found = digest.to_bytes(self._state.digest)
        if found != expected:
            raise DigestMismatch(
                f"the restored state's digest is {digest.show(found)}, its writer recorded {digest.show(expected)}. "
                f"Nothing was changed. `statehold retry {self._partition}` reads again; see "
                f"docs/runbook/errors.md#digestmismatch",
                topic=self._input,
                partition=self._partition,
            )

    def workload(self, manifest: Manifest | None, gap: int) -> Workload:
        """What there was to do, after `apply`, with so many records that are still to be replayed."""
        read = self._progress.done.get("increments")
        return Workload(
            full_keys=manifest.keys if manifest else 0,
            full_bytes=manifest.size if manifest else 0,
            transactions=self.transactions,
            entries=self.unsaved_keys,
            increment_bytes=read.bytes if read else 0,
            keys=self._state.keys,
            gap=gap,
        )


def damaged(place: Place, finding: str) -> DamagedIncrement:
    """The increment topic is not what its writers left there."""
    return DamagedIncrement(
        f"{finding}. Nothing was changed. See docs/runbook/errors.md#damagedincrement, and `statehold repair rebase "
        f"--help`",
        topic=place.names.changelog,
        partition=place.partition,
    )
