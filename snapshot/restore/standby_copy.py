"""A standby copy: a committed state that follows its owner's changelog, for a takeover that reads only the tail.

The copy checks everything that a restore checks: the chain record by record, the state generation, the digest at every
delta. A fault drops the copy, never the partition: the takeover then restores from a full snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from statehold.api.record import Message
from statehold.errors import DamagedIncrement, StateholdError, StateRefused
from statehold.ports import Clock, OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, EntryDecoder
from statehold.snapshot.format.side_inputs import placed
from statehold.snapshot.restore.discovery import last_commit_record, newest_commit_record
from statehold.snapshot.restore.estimate import Spent
from statehold.snapshot.restore.progress import Progress, WatchedReader
from statehold.snapshot.restore.restore import Note, Restored
from statehold.state import digest

#: transactions since the newest full snapshot that are counted one by one; older ones are added up
_COUNTED: Final = 10_000


class Unfit(StateholdError):
    """The copy cannot continue; the text says why. A restore from a full snapshot can."""


class Copy:
    """Used by one thread at a time. `state.version` is odd during a change, for readers on other threads."""

    def __init__(self, place: Place, restored: Restored, offset: int) -> None:
        commit_record = restored.commit_record
        self.place, self.state, self.commit_record = place, restored.state, commit_record
        self._base = restored
        #: the next changelog offset to read
        self.offset = offset
        #: the commit record of this state: the last one, or an earlier one if the last one carries no delta
        self.shown = commit_record
        first = max(commit_record.last_delta, restored.full.first if restored.full else 0)
        if not commit_record.delta:
            self.shown = msgspec.structs.replace(commit_record, n=first, positions=dict(restored.positions))
        #: commands and time limits between the records after the last delta, and with several inputs their order
        self.pinned, self.runs = list(restored.pinned), list(restored.runs)
        self._input = place.names.input
        self._chain = Chain(place.names.changelog, place.partition, last=commit_record.n, lineage=commit_record.lineage)
        self._decoder = EntryDecoder(self.state.key_types)
        #: bytes and keys of the deltas after the newest full snapshot of a commit record, by transaction
        self._unsaved = deque([(commit_record.n, restored.unsaved_bytes, restored.unsaved_keys)])
        self._size = 0
        self.full_time = restored.full_time
        #: monotonic time at which the copy held all that had committed: the greatest age of the state
        self.fresh = 0.0
        #: its new owner has it and continues from it
        self.taken = False

    def feed(self, messages: Sequence[Message]) -> int:
        """Apply the transactions that these records complete. Return their number.

        :raises StateRefused, frame.BadFrame, Unfit: drop the copy.
        """
        done = 0
        for message in messages:
            data, offset = message.value(), message.offset() or 0
            increment = self._chain.feed(offset, records.unpack(data))
            self._size += len(data or b"")
            if increment is not None:
                self._take(increment)
                done += 1
            self.offset = offset + 1
        return done

    def read_up_to(self, end: int, asked: float) -> None:
        """Note that all records committed at `asked` (monotonic) were fed; only markers follow up to `end`."""
        self.offset, self.fresh = max(self.offset, end), asked

    def catch_up(self, reader: Reader, commit_record: CommitRecord) -> int:
        """Feed the records up to the last commit record, after a fence. Return the number of transactions.

        :raises OutOfRange: truncation was faster. Otherwise as `feed`.
        """
        start, end = reader.bounds(self._chain.topic, self._chain.partition)
        known, done = self.offset, 0
        if end < known:
            raise Unfit(f"the log ends at {end}, and was read up to {known}")
        try:
            for batch in reader.read(self._chain.topic, self._chain.partition, max(start, known), end):
                done += self.feed(batch)
        except DamagedIncrement as hole:
            if start <= known:
                raise
            raise OutOfRange(f"the log begins at {start} now, and was read up to {known}") from hole
        self._chain.finish(end)
        if self.commit_record.identity != commit_record.identity:
            raise Unfit(
                f"it has followed to transaction {self.commit_record.n}, the last commit record is {commit_record.n}"
            )
        return done

    def restored(self, tail: int, began: float, clock: Clock) -> Restored:
        """Return the state as a restore would, for its new owner; `tail` is the result of `catch_up`."""
        base, commit_record = self._base, self.commit_record
        self.state.taken_over()
        for name, table in self.state.tables.items():
            if table.unreadable():
                raise Unfit(f"table {name!r} holds values that this code cannot read")
        unsaved_bytes, unsaved_keys = sum(each[1] for each in self._unsaved), sum(each[2] for each in self._unsaved)
        seconds = clock() - began
        gap = max(0, commit_record.position(self._input) - self.shown.position(self._input))
        return msgspec.structs.replace(
            base,
            commit_record=commit_record,
            position=self.shown.position(self._input),
            positions=self.shown.positions,
            full=base.full if base.full in commit_record.full_snapshots else None,
            deltas=tail,
            seconds=seconds,
            unsaved_bytes=unsaved_bytes,
            unsaved_keys=unsaved_keys,
            unusable=(),
            work=msgspec.structs.replace(
                base.work,
                transactions=commit_record.n - self._unsaved[0][0] if self._unsaved else 0,
                entries=unsaved_keys,
                increment_bytes=unsaved_bytes,
                keys=self.state.keys,
                gap=gap,
            ),
            spent=Spent(seconds),
            from_disk=False,
            from_standby=True,
            full_time=self.full_time,
            pinned=tuple(self.pinned),
            runs=tuple(self.runs),
        )

    def _take(self, increment: Increment) -> None:
        commit_record, state = increment.commit_record, self.state
        if commit_record.delta and not self.place.deltas_reach(self.shown.n, commit_record):
            raise Unfit(
                f"the deltas of transaction {commit_record.n} continue from {commit_record.reach}, this is "
                f"{self.shown.n}"
            )
        if (commit_record.types, commit_record.schemas) != (self.commit_record.types, self.commit_record.schemas):
            self.place.check(commit_record)  # another release owns the partition, and queries read this copy
        keys = 0
        state.version += 1  # readers retry from here on
        for part in increment.parts:
            for raw in part.entries:
                changes = self._decoder.decode(raw)
                state.follow(changes)
                keys += len(changes.keys)
        if commit_record.delta and digest.to_bytes(state.digest) != commit_record.digest:
            found, theirs = digest.show(state.digest), digest.show(commit_record.digest)
            raise Unfit(f"after transaction {commit_record.n} its digest is {found}, the owner's {theirs}")
        if commit_record.delta:
            self.pinned.clear()
            self.runs.clear()
            self.shown = commit_record
        else:
            self.runs += [commit_record.runs] if commit_record.runs else []
            self.pinned += placed(commit_record, self._input, commit_record.pinned)
        self._note_full_snapshots(commit_record, keys)
        self.commit_record = commit_record
        state.version += 1

    def _note_full_snapshots(self, commit_record: CommitRecord, keys: int) -> None:
        """Count what a restore from a full snapshot would read; the next owner's snapshot policy needs it."""
        self._unsaved.append((commit_record.n, self._size, keys))
        self._size = 0
        if len(self._unsaved) > _COUNTED:
            first, second = self._unsaved.popleft(), self._unsaved.popleft()
            self._unsaved.appendleft((first[0], first[1] + second[1], first[2] + second[2]))
        if commit_record.full_snapshots and commit_record.full_snapshots[:1] != self.commit_record.full_snapshots[:1]:
            self.full_time = commit_record.time / 1000
            while self._unsaved and self._unsaved[0][0] <= commit_record.full_snapshots[0].first:
                self._unsaved.popleft()


C = TypeVar("C", bound=Copy)


def copied(reader: Reader, place: Place, restored: Restored, kind: type[C]) -> C:
    """Return a copy of this class that continues after the restored commit record.

    :raises Unfit: that commit record is already gone.
    """
    located = newest_commit_record(reader, place, lambda commit_record: commit_record.n <= restored.commit_record.n)
    if located is None or located.commit_record.identity != restored.commit_record.identity:
        raise Unfit(f"the commit record of transaction {restored.commit_record.n} is gone")
    return kind(place, restored, located.offset + 1)


def _checked(commit_record: CommitRecord | None, place: Place, copy: Copy) -> CommitRecord:
    if commit_record is None:
        raise Unfit("the log holds no commit record")
    place.check(commit_record)
    place.require_here(commit_record)
    if (place.topic_ids, place.partitions) != (copy.place.topic_ids, copy.place.partitions):
        raise Unfit("the topics are not those that it was read from")
    return commit_record


def go_on(reader: Reader, place: Place, copy: Copy, note: Note, clock: Clock, progress: Progress) -> Restored | None:
    """Return the newest committed state from a copy that has followed it; call it after the fence, as `restore`.

    Return None if the copy cannot continue, after a note. `restore` then reports the cause, if there is one.

    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again.
    """
    began, watched = clock(), WatchedReader(reader, progress)
    progress.watch(copy.state)
    try:
        commit_record = _checked(last_commit_record(watched, place.names.changelog, place.partition), place, copy)
        progress.enter("deltas", copy.offset, copy.offset)
        tail = copy.catch_up(watched, commit_record)
        return copy.restored(tail, began, clock)
    except (OutOfRange, StateRefused, frame.BadFrame, Unfit) as error:
        note("standby_dropped", {"cause": str(error)})
        return None
    finally:
        progress.leave()
