"""Brings a state back: last mark, newest usable full, the deltas after it, digest (rules T1, S1-S6, C5, D1).

Called by the partition's own thread after the fence; reads with `assign` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from statehold.errors import DamagedIncrement, DigestMismatch, NoMark, NoUsableFull, UnknownSchema
from statehold.messages.pinned_command import Pinned, Placed
from statehold.ports import Clock, OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import EntryDecoder, FullRef, Manifest, Mark, UnknownTable
from statehold.snapshot.full import FullUnusable
from statehold.snapshot.gc_control import no_collection
from statehold.snapshot.restore.delta_apply import Following, damaged
from statehold.snapshot.restore.discovery import published
from statehold.snapshot.restore.estimate import Spent, Workload
from statehold.snapshot.restore.full_loading import Loading
from statehold.snapshot.restore.last_commit_record import last_mark
from statehold.snapshot.restore.local_cache import LocalFulls
from statehold.snapshot.restore.progress import Progress, WatchedReader
from statehold.snapshot.state import State

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
    #: when the full was complete, in seconds since 1970; 0: there is none
    full_time: float = 0.0
    #: commands that stand between the records of the gap
    pinned: tuple[Placed[Pinned], ...] = ()
    #: a copy has followed the owner's increments (`snapshot.standby`): `deltas` is all that was still to be read
    from_standby: bool = False


def restore(
    reader: Reader,
    place: Place,
    new_state: Callable[[], State],
    note: Note,
    clock: Clock,
    attempts: int = 3,
    progress: Progress | None = None,
    local: LocalFulls | None = None,
    store: str = "",
) -> Restored:
    """The newest committed state of a partition; started over `attempts` times when truncation overtakes it (rule C5).

    `progress` is moved while it goes on; its steps are those of the attempt that succeeded.
    `local` may save the download of the full; `store` is where fulls are looked for that are not where they were.

    :raises NoMark, DamagedIncrement, TornTransaction, DigestMismatch, TopicReplaced, PartitionCountChanged: an operator
        must decide; nothing was changed.
    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again.
    """
    began = clock()
    progress = progress or Progress(clock)
    for attempt in range(1, attempts + 1):
        try:
            with no_collection:
                run = _Restore(reader, place, new_state, note, progress, local, store)
                run.may_begin_again = attempt < attempts
                state, mark, position, full, deltas = run.run()
        except OutOfRange as error:
            note("restore_overtaken", {"attempt": attempt, "cause": str(error)})
        else:
            unsaved = run.following.unsaved_bytes, run.following.unsaved_keys, tuple(run.unusable)
            seconds, gap = clock() - began, max(0, mark.positions[place.input] - position)
            work = run.following.workload(run.manifest, gap)
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
                run.manifest.time / 1000 if run.manifest is not None else 0.0,
                tuple(run.following.pinned),
            )
    raise DamagedIncrement(
        f"truncated while it was being read, {attempts} times: is somebody else deleting records? "
        f"`statehold retry {place.partition}` tries again",
        topic=place.names.changelog,
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
        store: str,
    ) -> None:
        self.reader, self.place, self.note = WatchedReader(reader, progress), place, note
        self.progress, self.local = progress, local
        self.store = store
        progress.done.clear()
        self.names, self.partition = place.names, place.partition
        self.new_state, self.state = new_state, new_state()
        progress.watch(self.state)
        self.unusable: list[FullRef] = []
        self.findings: list[str] = []
        self.may_begin_again = False
        self.manifest: Manifest | None = None
        self.following: Following
        self.decoder = EntryDecoder({name: table.key_type for name, table in self.state.tables.items()})

    def run(self) -> tuple[State, Mark, int, FullRef | None, int]:
        try:
            mark = self._last_mark()
            self.place.check(mark)
            self.place.require_here(mark)
            return self._first_that_works(mark)
        except frame.BadFrame as error:
            raise damaged(self.place, f"a record cannot be read: {error}") from error
        finally:
            self.progress.leave()

    def _last_mark(self) -> Mark:
        self.progress.enter("mark")
        mark = last_mark(self.reader, self.names.changelog, self.partition)
        if mark is not None:
            return mark
        start, end = self.reader.bounds(self.names.changelog, self.partition)
        if end > 0:
            raise damaged(self.place, f"offsets {start} to {end} hold no mark: it was there and is gone")
        raise NoMark(
            f"{self.names.changelog} holds no mark, so there is neither a state nor a start position. For a first "
            f"start: `statehold topics create --start-at beginning|end|TIMESTAMP|group`",
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
            except UnknownTable as error:
                raise self._unknown_schema(mark, f"the state {error}: run the code that has it") from error
            except FullUnusable as finding:
                if self.may_begin_again and isinstance(finding.__cause__, OutOfRange):
                    raise finding.__cause__ from finding  # truncated just now: there is a newer full (rule C5)
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
        others = published(self.reader, self.place, max((ref.offset for ref in mark.fulls), default=-1))
        newest = next(others, None)
        fulls = sorted([*mark.fulls, *([newest.ref] if newest else [])], key=lambda ref: -ref.first)
        far: list[FullRef | None] = []
        for ref in (*fulls, *(other.ref for other in others), None):
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
        return self._load(
            Loading(ref, self.progress, self.local, from_disk=False, store=self.store), mark, ref, replayed
        )

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
        self.manifest = manifest
        self.following = Following(self.reader, self.place, self.state, self.decoder, self.progress)
        position, deltas = self.following.apply(mark, manifest, replayed=replayed)
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

    def _check_versions(self, mark: Mark) -> None:
        """An upcaster that was taken away while values still need it."""
        for name, table in self.state.tables.items():
            if versions := table.unreadable():
                shown = ", ".join(map(str, sorted(versions)))
                raise self._unknown_schema(
                    mark,
                    f"table {name!r} holds values of version {shown}, this code reads others: give it their upcasters",
                )

    def _unknown_schema(self, mark: Mark, finding: str) -> UnknownSchema:
        code = f" with code {mark.writer.code}" if mark.writer.code else ""
        return UnknownSchema(
            f"{finding}. The last mark was written by {mark.writer.instance}{code}. Nothing was changed; see "
            f"docs/upgrades.md",
            topic=self.names.input,
            partition=self.partition,
            position=mark.positions[self.names.input],
        )

    def _nothing_left(self, mark: Mark) -> NoUsableFull:
        return NoUsableFull(
            f"the state of transaction {mark.n} cannot be brought back: {'; '.join(self.findings)}. Nothing was "
            f"changed. Bring the topics back with `statehold snapshot restore` from a backup, or repair what is named "
            f"and `statehold retry {self.partition}`, or stop the service: `statehold repair rebase MODULE:SERVICE "
            f"--records replay --why ... --dry-run`; see docs/runbook/errors.md#nousablefull",
            topic=self.names.snapshot,
            partition=self.partition,
        )
