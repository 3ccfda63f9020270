"""Brings a state back: last mark, newest usable full, the deltas after it, digest (rules T1, S1-S6, C5, D1).

Called by the partition's own thread after the fence; reads with `assign` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.errors import (
    DamagedIncrement,
    DigestMismatch,
    NoMark,
    NoUsableFull,
    UnknownSchema,
)
from holdfast.ports import Clock, OutOfRange, Reader
from holdfast.snapshot import digest, frame, records
from holdfast.snapshot.budget import Spent, Workload
from holdfast.snapshot.chain import Chain, Increment
from holdfast.snapshot.full import FullUnusable
from holdfast.snapshot.garbage import no_collection
from holdfast.snapshot.last import last_mark
from holdfast.snapshot.loading import Loading
from holdfast.snapshot.local import LocalFulls
from holdfast.snapshot.place import Place
from holdfast.snapshot.progress import Progress, WatchedReader
from holdfast.snapshot.records import EntryDecoder, FullRef, Manifest, Mark
from holdfast.snapshot.state import State

__all__ = ["Note", "Restored", "last_mark", "restore"]

#: Something an operator wants to read while a restore goes on: the event's name and its fields.
Note = Callable[[str, dict[str, object]], None]


class Restored(msgspec.Struct, frozen=True):
    """A state at `position`, and the last mark up to whose position the gap must still be replayed."""

    state: State
    mark: Mark
    #: input position that the state stands for
    position: int
    full: FullRef | None
    deltas: int
    seconds: float
    #: bytes of increments and keys in deltas since the full: what the next full would save a restore from reading
    unsaved_bytes: int = 0
    unsaved_keys: int = 0
    #: fulls of the mark that cannot be a base
    unusable: tuple[FullRef, ...] = ()
    #: what there was to do, and how long each part of it took: the gap is still to be replayed
    work: Workload = Workload()
    spent: Spent = Spent()
    #: the full came from the local disk
    from_disk: bool = False


def restore(
    reader: Reader,
    place: Place,
    new_state: Callable[[], State],
    note: Note,
    clock: Clock,
    attempts: int = 3,
    progress: Progress | None = None,
    local: LocalFulls | None = None,
) -> Restored:
    """The newest committed state of a partition; started over `attempts` times when truncation overtakes it (rule C5).

    `progress` is moved while it goes on; its steps are those of the attempt that succeeded.
    `local` may save the download of the full.

    :raises NoMark, DamagedIncrement, TornTransaction, DigestMismatch, TopicReplaced, PartitionCountChanged: an operator
        must decide; nothing was changed.
    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again.
    """
    began = clock()
    progress = progress or Progress(clock)
    for attempt in range(1, attempts + 1):
        try:
            with no_collection:
                run = _Restore(reader, place, new_state, note, progress, local)
                state, mark, position, full, deltas = run.run()
        except OutOfRange as error:
            note("restore_overtaken", {"attempt": attempt, "cause": str(error)})
        else:
            unsaved = run.unsaved_bytes, run.unsaved_keys, tuple(run.unusable)
            seconds, gap = clock() - began, max(0, mark.positions[place.input] - position)
            work = run.workload(gap)
            return Restored(
                state,
                mark,
                position,
                full,
                deltas,
                seconds,
                *unsaved,
                work,
                progress.spent(seconds),
                "local" in progress.done,
            )
    raise DamagedIncrement(
        f"truncated while it was being read, {attempts} times: is somebody else deleting records? "
        f"`holdfast retry {place.partition}` tries again",
        topic=place.names.increment,
        partition=place.partition,
    )


class _Restore:
    """One attempt; thrown away with its half-filled state when it does not succeed."""

    def __init__(
        self,
        reader: Reader,
        place: Place,
        new_state: Callable[[], State],
        note: Note,
        progress: Progress,
        local: LocalFulls | None,
    ) -> None:
        self.reader, self.place, self.note = WatchedReader(reader, progress), place, note
        self.progress, self.local = progress, local
        progress.done.clear()
        self.names, self.partition = place.names, place.partition
        self.new_state, self.state = new_state, new_state()
        progress.watch(self.state)
        self.unsaved_bytes = self.unsaved_keys = self.transactions = 0
        self.unusable: list[FullRef] = []
        self.findings: list[str] = []
        self.manifest: Manifest | None = None
        self.decoder = EntryDecoder({name: table.key_type for name, table in self.state.tables.items()})

    def run(self) -> tuple[State, Mark, int, FullRef | None, int]:
        try:
            mark = self._last_mark()
            self.place.check(mark)
            return self._first_that_works(mark)
        except frame.BadFrame as error:
            raise self._damaged(f"a record cannot be read: {error}") from error
        finally:
            self.progress.leave()

    def workload(self, gap: int) -> Workload:
        """What there was to do, after `run`, with so many records that are still to be replayed."""
        manifest, read = self.manifest, self.progress.done.get("increments")
        return Workload(
            full_keys=manifest.keys if manifest else 0,
            full_bytes=manifest.size if manifest else 0,
            transactions=self.transactions,
            entries=self.unsaved_keys,
            increment_bytes=read.bytes if read else 0,
            keys=self.state.keys,
            gap=gap,
        )

    def _last_mark(self) -> Mark:
        self.progress.enter("mark")
        mark = last_mark(self.reader, self.names.increment, self.partition)
        if mark is not None:
            return mark
        start, end = self.reader.bounds(self.names.increment, self.partition)
        if end > 0:
            raise self._damaged(f"offsets {start} to {end} hold no mark: it was there and is gone")
        raise NoMark(
            f"{self.names.increment} holds no mark, so there is neither a state nor a start position. For a first "
            f"start: "
            f"`holdfast topics create --start-at beginning|end|TIMESTAMP|group`",
            topic=self.names.input,
            partition=self.partition,
        )

    def _first_that_works(self, mark: Mark) -> tuple[State, Mark, int, FullRef | None, int]:
        """The newest full that is complete now, else an older one, else an empty state; every step down is told.

        A reference in a mark is only a hint (rule S4). A base to which the deltas do not reach back serves only where
        the input after it is still there: its records are handled again then.
        """
        mismatch: DigestMismatch | None = None
        for ref, replayed in self._bases(mark):
            try:
                position, deltas = self._from(mark, ref, replayed)
            except FullUnusable as finding:
                self._step_down(ref, str(finding))
            except DigestMismatch as error:
                mismatch = mismatch or error
                self._step_down(ref, str(error))
            else:
                self._check_versions(mark)
                return self.state, mark, position, ref, deltas
        raise mismatch or self._nothing_left(mark)

    def _bases(self, mark: Mark) -> Iterator[tuple[FullRef | None, bool]]:
        """Each full, newest first, then the empty state; first with the deltas after them, then with the input."""
        fulls = sorted(mark.fulls, key=lambda ref: -ref.first)
        far: list[FullRef | None] = []
        for ref in (*fulls, None):
            if self.place.deltas_reach(ref.first if ref else mark.adopted, mark):
                yield ref, False
            else:
                far.append(ref)
        yield from ((ref, True) for ref in far)

    def _from(self, mark: Mark, ref: FullRef | None, replayed: bool) -> tuple[int, int]:
        """The position of the newest state that follows from this base, and how many deltas it took."""
        if ref is None:
            return self._lead_on(mark, None, None, replayed)
        if self.local is not None and self.local.has(ref):
            try:
                return self._load(Loading(ref, self.progress, self.local, from_disk=True), mark, ref, replayed)
            except (FullUnusable, DigestMismatch):
                self._empty()  # the disk was wrong, which says nothing of Kafka
        return self._load(Loading(ref, self.progress, self.local, from_disk=False), mark, ref, replayed)

    def _load(self, loading: Loading, mark: Mark, ref: FullRef, replayed: bool) -> tuple[int, int]:
        try:
            manifest = loading.run(self.reader, self.place, mark, self.state, self.decoder, replayed=replayed)
            found = self._lead_on(mark, ref, manifest, replayed)
        except (FullUnusable, DigestMismatch) as error:
            loading.failed(str(error))
            raise
        except BaseException:
            loading.drop()
            raise
        loading.proven()
        return found

    def _lead_on(self, mark: Mark, ref: FullRef | None, manifest: Manifest | None, replayed: bool) -> tuple[int, int]:
        position, deltas = self._deltas(mark, manifest, replayed)
        if replayed:
            start, _ = self.reader.bounds(self.names.input, self.partition)
            if position < start:
                raise FullUnusable(
                    f"the deltas lead on from transaction {mark.reach}, not from {ref.first if ref else 'the first'}, "
                    f"because snapshot.delta_interval was off before; and the input after it is gone: it begins at "
                    f"{start}, {position} is needed"
                )
            self.note("replaying_far", {"full": ref.offset if ref else None, "position": position, "reach": mark.reach})
        return position, deltas

    def _step_down(self, ref: FullRef | None, finding: str) -> None:
        self.findings.append(f"{f'the full at offset {ref.offset}' if ref else 'no full at all'}: {finding}")
        if ref is not None:
            self.note("full_unusable", {"full": ref.offset, "n": ref.first, "finding": finding})
            self.unusable.append(ref)
        self._empty()

    def _empty(self) -> None:
        """Begin anew with an empty state."""
        self.state = self.new_state()
        self.progress.watch(self.state)
        self.progress.leave()
        self.progress.done.clear()
        self.unsaved_bytes = self.unsaved_keys = self.transactions = 0

    def _check_versions(self, mark: Mark) -> None:
        """An upcaster that was taken away while values still need it."""
        for name, table in self.state.tables.items():
            if versions := table.unreadable():
                shown = ", ".join(map(str, sorted(versions)))
                raise UnknownSchema(
                    f"table {name!r} holds values of version {shown}, this code reads others: give it their upcasters "
                    f"again. Nothing was changed; see docs/upgrades.md",
                    topic=self.names.input,
                    partition=self.partition,
                    position=mark.positions[self.names.input],
                )

    def _nothing_left(self, mark: Mark) -> NoUsableFull:
        return NoUsableFull(
            f"the state of transaction {mark.n} cannot be brought back: {'; '.join(self.findings)}. Nothing was "
            f"changed. Bring the topics back with `holdfast snapshot restore` from a backup, or repair what is named "
            f"and `holdfast retry {self.partition}`; see docs/runbook.md, 'No usable full'",
            topic=self.names.full,
            partition=self.partition,
        )

    def _deltas(self, mark: Mark, manifest: Manifest | None, replayed: bool) -> tuple[int, int]:
        """Apply what came after the base; the position of the newest state, and how many deltas it took.

        `replayed`: the chain is checked and nothing is applied.

        The digest is compared once, at the newest mark whose state this is: before the last slice of a fuzzy full the
        state is no transaction's (rule S1).
        """
        topic, applied = self.names.input, 0
        self.manifest = manifest
        position = manifest.positions[topic] if manifest else -1
        expected = manifest.digest if manifest else b""
        for increment in self._increments(mark, manifest):
            self.transactions += 1
            if position < 0:
                position, expected = increment.mark.positions[topic], increment.mark.digest
            if replayed or not increment.mark.delta:
                continue
            for part in increment.parts:
                for raw in part.entries:
                    changes = self.decoder.decode(raw)
                    self.state.load(changes)
                    self.unsaved_keys += len(changes.keys)
            applied, position, expected = applied + 1, increment.mark.positions[topic], increment.mark.digest
        self.progress.enter("digest")
        self.state.loaded()
        self._check_digest(expected)
        return position, applied

    def _increments(self, mark: Mark, manifest: Manifest | None) -> Iterator[Increment]:
        start, end = self.reader.bounds(self.names.increment, self.partition)
        chain = Chain(self.names.increment, self.partition)
        if manifest is not None:
            start = max(start, manifest.increment)
            chain.last, chain.lineage = manifest.first, manifest.lineage
        elif mark.adopted > 0:
            chain.last = mark.adopted - 1  # what came before is another lineage's (rule S6)
        self.progress.enter("increments", start, end)
        size = 0
        for batch in self.reader.read(self.names.increment, self.partition, start, end):
            for message in batch:
                data = message.value()
                increment = chain.feed(message.offset() or 0, records.unpack(data))
                size += len(data)
                if increment is None:
                    continue
                if increment.parts or increment.mark.positions[self.names.input] != increment.mark.start:
                    self.unsaved_bytes += size
                size = 0
                if manifest is None and chain.first == increment.mark.n:
                    self._check_beginning(increment)
                yield increment
        chain.finish(end)
        if chain.last is None or chain.last < mark.n:
            raise self._damaged(f"the chain ends with transaction {chain.last}, the last mark is {mark.n}")

    def _check_beginning(self, increment: Increment) -> None:
        """Without a full all must be there from an empty state on: the genesis, or an adopt record without a base."""
        n, adopt = increment.mark.n, increment.adopt
        if adopt is not None and adopt.base is not None:
            raise FullUnusable(f"adopt record {n} names a full that the deltas lead on from")
        if n > 0 and adopt is None:
            raise FullUnusable(f"the deltas begin with transaction {n}: what was before is gone")

    def _check_digest(self, expected: bytes) -> None:
        found = digest.to_bytes(self.state.digest)
        if found != expected:
            raise DigestMismatch(
                f"the restored state's digest is {digest.show(found)}, its writer recorded {digest.show(expected)}. "
                f"Nothing was changed. `holdfast retry {self.partition}` reads again; see docs/runbook.md, 'Digest'",
                topic=self.names.input,
                partition=self.partition,
            )

    def _damaged(self, finding: str) -> DamagedIncrement:
        return DamagedIncrement(
            f"{finding}. Nothing was changed. See docs/runbook.md, 'Damaged increment'",
            topic=self.names.increment,
            partition=self.partition,
        )
