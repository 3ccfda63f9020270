"""Restores a state: last commit record, newest usable full snapshot, deltas, digest (rules T1, S1-S6, C5, D1).

The partition's own thread calls it after the fence. It reads with `assign` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec

from statehold.errors import DamagedIncrement, DigestMismatch, NoCommitRecord, NoUsableFull, UnknownSchema
from statehold.messages.dead_letter import BLOCKED_KEYS, RESOLVED
from statehold.messages.pinned_command import Pinned, Placed, TimeLimit
from statehold.ports import Clock, OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import (
    CommitRecord,
    EntryDecoder,
    FullRef,
    Manifest,
    OtherKeys,
    UnknownTable,
    position_of,
)
from statehold.snapshot.full import FullDiffers, FullUnusable
from statehold.snapshot.gc_control import no_collection
from statehold.snapshot.lost_state import ways_back
from statehold.snapshot.restore.delta_apply import AppliedDeltas, apply_deltas, damaged
from statehold.snapshot.restore.discovery import last_commit_record, published
from statehold.snapshot.restore.estimate import Spent, Workload
from statehold.snapshot.restore.full_loading import FullLoading
from statehold.snapshot.restore.local_cache import LocalFullSnapshots
from statehold.snapshot.restore.progress import Progress, WatchedReader
from statehold.state.state import State
from statehold.state.system_names import CLOCK, EXPIRY, TIMERS, default_name, owner

#: Logs an event of a restore: the event's name and its fields.
Note = Callable[[str, dict[str, object]], None]


class Restored(msgspec.Struct, frozen=True):
    """A state at `position`, and the last commit record. The gap between the two is still to be replayed."""

    state: State
    commit_record: CommitRecord
    #: position of the state (`CommitRecord.position`), and its next offset of each topic
    position: int
    positions: Mapping[str, int]
    full: FullRef | None
    deltas: int
    seconds: float
    #: bytes and keys of the deltas since the full snapshot, which a restore after the next full snapshot need not read
    unsaved_bytes: int = 0
    unsaved_keys: int = 0
    #: full snapshots of the commit record that cannot be a base
    unusable: tuple[FullRef, ...] = ()
    #: the work of this restore and its duration by part, without the replay of the gap
    work: Workload = Workload()
    spent: Spent = Spent()
    #: the full snapshot came from the local disk
    from_disk: bool = False
    #: time at which the full snapshot was complete, in seconds since 1970; 0 without a full snapshot
    full_time: float = 0.0
    #: commands and time limits between the records of the gap
    pinned: tuple[Placed[Pinned | TimeLimit], ...] = ()
    #: with several inputs: the order of the records of the gap, transaction by transaction
    runs: tuple[bytes, ...] = ()
    #: a standby copy (`snapshot.standby`) had followed the owner: `deltas` counts the transactions read since
    from_standby: bool = False
    #: the files of tables on disk held the state: `deltas` as with a standby copy
    from_files: bool = False


class _Base(NamedTuple):
    """A full snapshot, or None for the empty state. `replayed`: no deltas reach it, so replay the input after it."""

    ref: FullRef | None
    replayed: bool
    from_disk: bool = False


def restore(
    reader: Reader,
    place: Place,
    new_state: Callable[[], State],
    note: Note,
    clock: Clock,
    attempts: int = 3,
    progress: Progress | None = None,
    local: LocalFullSnapshots | None = None,
) -> Restored:
    """Return the newest committed state. Start over, up to `attempts` times, if truncation overtakes it (rule C5).

    `progress` holds the steps of the attempt that succeeded. `local` may save the download of the full snapshot.

    :raises NoCommitRecord, DamagedIncrement, TornTransaction, DigestMismatch, TopicReplaced, PartitionCountChanged: an
        operator must decide; nothing was changed.
    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again.
    """
    began = clock()
    progress = progress or Progress(clock)
    for attempt in range(1, attempts + 1):
        try:
            with no_collection:
                run = _Attempt(reader, place, new_state, note, progress, local, last=attempt == attempts)
                commit_record, base, done = run.restore()
        except OutOfRange as error:
            note("restore_overtaken", {"attempt": attempt, "cause": str(error)})
            continue
        manifest, read, seconds = run.manifest, progress.done.get("deltas"), clock() - began
        position = position_of(done.positions, place.names.inputs)
        return Restored(
            state=run.state,
            commit_record=commit_record,
            position=position,
            positions=done.positions,
            full=base.ref,
            deltas=done.deltas,
            seconds=seconds,
            unsaved_bytes=done.unsaved_bytes,
            unsaved_keys=done.unsaved_keys,
            unusable=tuple(run.unusable),
            work=Workload(
                full_keys=manifest.loads if manifest else 0,
                full_bytes=manifest.size if manifest else 0,
                transactions=done.transactions,
                entries=done.unsaved_keys,
                increment_bytes=read.bytes if read else 0,
                keys=run.state.keys,
                gap=max(0, commit_record.position(place.names.input) - position),
            ),
            spent=progress.spent(seconds),
            from_disk="local" in progress.done,
            full_time=manifest.time / 1000 if manifest else 0.0,
            pinned=tuple(done.pinned),
            runs=tuple(done.runs),
        )
    raise DamagedIncrement(
        f"truncated while it was being read, {attempts} times: another program may be deleting records. Nothing was "
        f"changed. Next: `statehold retry {place.partition}`",
        topic=place.names.changelog,
        partition=place.partition,
    )


class _Attempt:
    """One attempt. It is discarded with its half-filled state if it does not succeed."""

    def __init__(
        self,
        reader: Reader,
        place: Place,
        new_state: Callable[[], State],
        note: Note,
        progress: Progress,
        local: LocalFullSnapshots | None,
        *,
        last: bool,
    ) -> None:
        self.reader, self.place, self.note = WatchedReader(reader, progress), place, note
        self.progress, self.local = progress, local
        self.last = last
        progress.done.clear()
        self.new_state, self.state = new_state, new_state()
        progress.watch(self.state)
        self.unusable: list[FullRef] = []
        self.findings: list[str] = []
        self.manifest: Manifest | None = None
        self.decoder = EntryDecoder(self.state.key_types)

    def restore(self) -> tuple[CommitRecord, _Base, AppliedDeltas]:
        """Restore from the newest base that is complete now: a full snapshot, else an older one, else the empty state.

        A reference in a commit record is only a hint (rule S4). Each base that fails is logged.
        """
        mismatch: DigestMismatch | None = None
        try:
            commit_record = self._last_commit_record()
            for base in self._bases(commit_record):
                try:
                    done = self._restore_from(base, commit_record)
                except OtherKeys as error:
                    advice = "run the code that wrote them, or give the table the old type of its keys"
                    raise self._unknown_schema(commit_record, f"the state {error}: {advice}") from error
                except UnknownTable as error:
                    raise self._unknown_schema(commit_record, f"the state {error}: {_advice(error.table)}") from error
                except (FullUnusable, DigestMismatch) as error:
                    if not base.from_disk:  # a fault of the local disk says nothing about Kafka
                        if isinstance(error, DigestMismatch):
                            mismatch = mismatch or error
                        elif not self.last and isinstance(error.__cause__, OutOfRange):
                            raise error.__cause__ from error  # truncated just now: there is a newer full (rule C5)
                        self._reject(base, str(error), differs=isinstance(error, (FullDiffers, DigestMismatch)))
                    self._empty()
                else:
                    self._check_versions(commit_record)
                    return commit_record, base, done
        except frame.BadFrame as error:
            raise damaged(self.place, f"a record cannot be read: {error}") from error
        finally:
            self.progress.leave()
        raise mismatch or self._nothing_left(commit_record)

    def _last_commit_record(self) -> CommitRecord:
        """Return the last commit record, checked against this partition and this code."""
        self.progress.enter("commit_record")
        names, partition = self.place.names, self.place.partition
        commit_record = last_commit_record(self.reader, names.changelog, partition)
        if commit_record is None:
            start, end = self.reader.bounds(names.changelog, partition)
            if end > 0:
                finding = f"offsets {start} to {end} hold no commit record: it was there and is gone"
                first, last = self.reader.bounds(names.snapshot, partition)
                if first < last:
                    raise damaged(self.place, finding)
                raise DamagedIncrement(
                    f"{finding}, and {names.snapshot} holds no full snapshot from which `statehold repair rebase` "
                    f"could continue. Nothing was changed. Next: {ways_back(names, self._input_start)}",
                    topic=names.changelog,
                    partition=partition,
                )
            raise NoCommitRecord(
                f"{names.changelog} holds no commit record, so there is neither a state nor a start position. Next: "
                f"for a first start, `statehold topics create --start-at beginning|end|TIMESTAMP|group`",
                topic=names.input,
                partition=partition,
            )
        self.place.check(commit_record)
        self.place.require_here(commit_record)
        return commit_record

    def _input_start(self, topic: str) -> int:
        return self.reader.bounds(topic, self.place.partition)[0]

    def _bases(self, commit_record: CommitRecord) -> Iterator[_Base]:
        """Yield the full snapshots that the deltas reach, newest first, then the others, then the empty state."""
        newest_known = -1
        for ref in commit_record.full_snapshots:
            newest_known = max(newest_known, ref.offset)
        others = published(self.reader, self.place, newest_known)
        newest = next(others, None)
        full_snapshots = sorted(
            [*commit_record.full_snapshots, *([newest.ref] if newest else [])], key=attrgetter("first"), reverse=True
        )
        far: list[_Base] = []
        for ref in chain(full_snapshots, map(attrgetter("ref"), others), [None]):
            if not self.place.deltas_reach(ref.first if ref else commit_record.adopted, commit_record):
                far.append(_Base(ref, replayed=True))
                continue
            if ref is not None and self._on_disk(ref):
                yield _Base(ref, replayed=False, from_disk=True)
            yield _Base(ref, replayed=False)
        for base in far:
            if base.ref is not None and self._on_disk(base.ref):
                yield base._replace(from_disk=True)
            yield base

    def _on_disk(self, ref: FullRef) -> bool:
        return self.local is not None and self.local.has(ref)

    def _restore_from(self, base: _Base, commit_record: CommitRecord) -> AppliedDeltas:
        """Load the full snapshot of this base, if any, and apply the deltas after it."""
        self.manifest = None
        if base.ref is None:
            return self._apply_deltas(base, commit_record)
        with FullLoading(base.ref, self.progress, self.local, from_disk=base.from_disk) as full:
            self.manifest = full.run(
                self.reader, self.place, commit_record, self.state, self.decoder, replayed=base.replayed
            )
            return self._apply_deltas(base, commit_record)

    def _apply_deltas(self, base: _Base, commit_record: CommitRecord) -> AppliedDeltas:
        """Apply the deltas after the base. If they do not reach it, check that the input after it is still there."""
        place = self.place
        done = apply_deltas(
            self.reader,
            place,
            self.state,
            self.decoder,
            self.progress,
            commit_record,
            self.manifest,
            replayed=base.replayed,
        )
        if base.replayed:
            for topic in place.names.inputs:
                start, _ = self.reader.bounds(topic, place.partition)
                if done.positions[topic] < start:
                    raise FullUnusable(
                        f"the deltas continue from transaction {commit_record.reach}, not from "
                        f"{base.ref.first if base.ref else 'the first'}, because snapshot.delta_interval was off "
                        f"before. The input to replay instead is gone: {topic} begins at {start}, "
                        f"{done.positions[topic]} is needed"
                    )
            full, position = base.ref.offset if base.ref else None, position_of(done.positions, place.names.inputs)
            self.note("replaying_far", {"full": full, "position": position, "reach": commit_record.reach})
        return done

    def _reject(self, base: _Base, finding: str, *, differs: bool) -> None:
        """Log why this base cannot be used; the next one follows. `differs`: its contents are not those written."""
        ref = base.ref
        self.findings.append(
            f"{f'full snapshot at offset {ref.offset}' if ref else 'without a full snapshot'}: {finding}"
        )
        if ref is not None:
            self.note("full_unusable", {"full": ref.offset, "n": ref.first, "finding": finding, "differs": differs})
            self.unusable.append(ref)

    def _empty(self) -> None:
        """Start over with an empty state."""
        self.state = self.new_state()
        self.progress.watch(self.state)
        self.progress.leave()
        self.progress.done.clear()

    def _check_versions(self, commit_record: CommitRecord) -> None:
        """Require the upcasters that the stored values need."""
        for name, table in self.state.tables.items():
            if table.version > 1 and (versions := table.unreadable()):
                shown = ", ".join(map(str, sorted(versions)))
                raise self._unknown_schema(
                    commit_record,
                    f"table {name!r} holds values of version {shown}, this code reads others: give it their upcasters",
                )

    def _unknown_schema(self, commit_record: CommitRecord, finding: str) -> UnknownSchema:
        code = f" with code {commit_record.writer.code}" if commit_record.writer.code else ""
        return UnknownSchema(
            f"{finding}. {commit_record.writer.instance}{code} wrote the last commit record. Nothing was changed",
            topic=self.place.names.input,
            partition=self.place.partition,
            position=commit_record.position(self.place.names.input),
        )

    def _nothing_left(self, commit_record: CommitRecord) -> NoUsableFull:
        return NoUsableFull(
            f"the state of transaction {commit_record.n} cannot be restored: {'; '.join(self.findings)}. Nothing was "
            "changed. Next: restore the topics from a backup with `statehold snapshot restore`, or fix the named "
            f"causes and `statehold retry {self.place.partition}`, or stop the service and run `statehold repair "
            "rebase MODULE:SERVICE --records replay --why TEXT --dry-run`; see NoUsableFull in the runbook",
            topic=self.place.names.snapshot,
            partition=self.place.partition,
        )


def _advice(table: str) -> str:
    """Return what to do about a table that the code does not declare, by what it holds."""
    name = default_name(table)
    if name == TIMERS:
        return (
            "it has timers, and this code no on_timer: keep the method, which may do nothing, or drop them with the "
            "code that has it: `statehold state migrate MODULE:SERVICE --drop statehold.timers --drop "
            "statehold.clock --why TEXT --dry-run`"
        )
    if name == CLOCK:
        return "it has a time, and this code no use of it: keep on_timer, the windows, the joins or the ttl"
    if name.startswith(EXPIRY):
        return f"keys of {owner(table)!r} expire, and this code declares it without ttl: keep one, as long as you like"
    if name in (BLOCKED_KEYS, RESOLVED):
        return (
            "dead letters wait or were resolved, and this code has no such policy: keep dead_letter() or retry_later() "
            "in on_failure"
        )
    return (
        f"run the code that has it, or name it in was=... of the table that has another name now, or declare "
        f"{table} = Retired(key=...) if nothing uses it any more"
    )
