"""Starts a partition from its files: what they hold, and the deltas after it, as a standby replica does (rule X2)."""

from __future__ import annotations

import msgspec

from statehold.disk import label as labels
from statehold.disk.disk_state import DiskState
from statehold.disk.label import StoreLabel
from statehold.disk.tables import DiskTable
from statehold.errors import StateRefused
from statehold.ports import Clock, OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.snapshot.restore.estimate import Workload
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.restore.restore import Note, Restored
from statehold.snapshot.restore.standby_copy import Copy, Unfit, copied, go_on
from statehold.state import digest
from statehold.state.digest import from_bytes


class FollowingFiles(Copy):
    """Follows the owner's changelog, and writes what it has checked to the files."""

    def __init__(self, place: Place, restored: Restored, offset: int) -> None:
        super().__init__(place, restored, offset)
        for table in self.state.tables.values():
            if isinstance(table, DiskTable):
                table.proven = True  # by this restore, or an earlier one; types of later deltas are compared

    @property
    def from_files(self) -> bool:
        """It began with what the files held, not with a full snapshot."""
        return self._base.from_files

    @property
    def begin(self) -> int:
        """The transaction whose state the files held."""
        return self._base.commit_record.n

    def _take(self, increment: Increment) -> None:
        super()._take(increment)
        if increment.commit_record.delta and self._disk.crowded:
            self.flush()

    def flush(self) -> None:
        """Write the state of the newest commit record with a delta; its digest was compared."""
        unsaved = sum(each[1] for each in self._unsaved), sum(each[2] for each in self._unsaved)
        work = self._base.work
        self._disk.flush(label_of(self.place, self._disk, self.shown, unsaved, work=work, full_time=self.full_time))

    @property
    def _disk(self) -> DiskState:
        assert isinstance(self.state, DiskState)
        return self.state


def label_of(
    place: Place,
    state: DiskState,
    record: CommitRecord,
    unsaved: tuple[int, int],
    *,
    work: Workload,
    full_time: float,
) -> bytes:
    """Return the label of a state that is exactly that of this commit record."""
    label = StoreLabel(
        labels.FORMAT,
        _fingerprint(place, state),
        records.pack(record),
        digest.to_bytes(state.digest),
        state.counts(),
        *unsaved,
        work,
        full_time,
    )
    return labels.encode(label)


def start_from_files(
    reader: Reader, place: Place, state: DiskState, note: Note, clock: Clock, progress: Progress
) -> Restored | None:
    """Return the newest committed state, from the files and the deltas after them; call it after the fence.

    Return None if the files cannot be used, after a note. They are cleared then, and `restore` fills them.

    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again. :raises LocalStoreFailed:
    """
    data = state.store.label()
    if data is None:
        return None
    try:
        copy = _copy(reader, place, state, _checked(data, place, state))
    except (OutOfRange, StateRefused, frame.BadFrame, Unfit) as error:
        note("local_store_dropped", {"cause": str(error)})
        return None
    restored = go_on(reader, place, copy, lambda event, fields: note("local_store_dropped", fields), clock, progress)
    if restored is None:
        return None
    if copy.shown.n > copy.begin:
        copy.flush()
    return msgspec.structs.replace(restored, from_standby=False, from_files=True)


def _checked(data: bytes, place: Place, state: DiskState) -> StoreLabel:
    """Return the label. :raises Unfit: the files are of another release or damaged."""
    label = labels.decoded(data)
    if label is None:
        raise Unfit("another release of statehold wrote the files, or they are damaged")
    if label.fingerprint != _fingerprint(place, state):
        raise Unfit("the files hold other tables, or values of other types")
    if label.counts != (found := state.stored_counts()):
        raise Unfit(f"the files hold {found} keys, and were written with {label.counts}")
    return label


def _copy(reader: Reader, place: Place, state: DiskState, label: StoreLabel) -> FollowingFiles:
    """Return what the files hold as a copy that can follow. :raises Unfit: their commit record is not in Kafka."""
    record = label.record
    newest = last_commit_record(reader, place.names.changelog, place.partition)
    if newest is not None and newest.lineage != record.lineage:
        raise Unfit(f"the files are of state generation {record.lineage}, the last commit record of {newest.lineage}")
    if label.digest != record.digest:
        raise Unfit(
            f"the files carry digest {digest.show(label.digest)}, the commit record of transaction {record.n} "
            f"{digest.show(record.digest)}"
        )
    state.load_files(from_bytes(label.digest))
    base = Restored(
        state=state,
        commit_record=record,
        position=record.position(place.names.input),
        positions=record.positions,
        full=record.full_snapshots[0] if record.full_snapshots else None,
        deltas=0,
        seconds=0.0,
        unsaved_bytes=label.unsaved_bytes,
        unsaved_keys=label.unsaved_keys,
        work=label.work,
        full_time=label.full_time,
    )
    return copied(reader, place, base, FollowingFiles)


def _fingerprint(place: Place, state: DiskState) -> int:
    return labels.fingerprint(place, {name: isinstance(table, DiskTable) for name, table in state.tables.items()})


def keep(place: Place, restored: Restored) -> None:
    """Label the files after a restore from Kafka; without a delta in its commit record the next delta does.

    :raises LocalStoreFailed:
    """
    state, record = restored.state, restored.commit_record
    if isinstance(state, DiskState) and record.delta:
        unsaved = restored.unsaved_bytes, restored.unsaved_keys
        state.flush(label_of(place, state, record, unsaved, work=restored.work, full_time=restored.full_time))
