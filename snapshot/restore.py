"""Brings a state back: last mark, newest usable full, the deltas after it, digest (rules T1, S1-S6, C5, D1).

Called by the partition's own thread after the fence; reads with `assign` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.errors import DamagedIncrement, DigestMismatch, NoMark, TornTransaction
from holdfast.ports import Clock, OutOfRange, Reader
from holdfast.snapshot import digest, frame, records
from holdfast.snapshot.chain import Chain, Increment
from holdfast.snapshot.full import FullUnusable, load
from holdfast.snapshot.garbage import no_collection
from holdfast.snapshot.place import Place
from holdfast.snapshot.progress import Progress, WatchedReader
from holdfast.snapshot.records import EntryDecoder, FullRef, Manifest, Mark
from holdfast.snapshot.state import State

_FIRST_STEP: Final = 64

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


def restore(
    reader: Reader,
    place: Place,
    new_state: Callable[[], State],
    note: Note,
    clock: Clock,
    attempts: int = 3,
    progress: Progress | None = None,
) -> Restored:
    """The newest committed state of a partition; started over `attempts` times when truncation overtakes it (rule C5).

    `progress` is moved while it goes on; its steps are those of the attempt that succeeded.

    :raises NoMark, DamagedIncrement, TornTransaction, DigestMismatch, TopicReplaced, PartitionCountChanged: an operator
        must decide; nothing was changed.
    :raises RestoreTimeout, HangingTransaction: Kafka did not deliver; try again.
    """
    began = clock()
    progress = progress or Progress(clock)
    for attempt in range(1, attempts + 1):
        try:
            with no_collection:
                run = _Restore(reader, place, new_state, note, progress)
                state, mark, position, full, deltas = run.run()
        except OutOfRange as error:
            note("restore_overtaken", {"attempt": attempt, "cause": str(error)})
        else:
            unsaved = run.unsaved_bytes, run.unsaved_keys, tuple(run.unusable)
            return Restored(state, mark, position, full, deltas, clock() - began, *unsaved)
    raise DamagedIncrement(
        f"truncated while it was being read, {attempts} times: is somebody else deleting records? "
        f"`holdfast retry {place.partition}` tries again",
        topic=place.names.increment,
        partition=place.partition,
    )


def last_mark(reader: Reader, topic: str, partition: int) -> Mark | None:
    """The newest mark, found by walking back from the end; None when the partition holds none (requirement B6).

    :raises frame.BadFrame: a record is not ours or damaged. :raises TornTransaction: a header follows the mark.
    """
    start, end = reader.bounds(topic, partition)
    step, upper, followed_by = _FIRST_STEP, end, -1
    while upper > start:
        lower = max(start, upper - step)
        found, follower = None, -1
        for batch in reader.read(topic, partition, lower, upper):
            for message in batch:
                kind = frame.kind_of(message.value())
                if kind not in records.INCREMENT_KINDS:
                    raise frame.BadFrame(f"kind {kind!r} at offset {message.offset()} does not belong on {topic}")
                if kind == b"M":
                    found, follower = message.value(), -1
                elif follower < 0:
                    follower = message.offset() or 0
        followed_by = follower if follower >= 0 else followed_by
        if found is not None:
            return _unfollowed(records.unpack(found), followed_by, topic, partition)
        upper, step = lower, step * 8
    return None


def _unfollowed(mark: records.Record, follower: int, topic: str, partition: int) -> Mark:
    assert isinstance(mark, Mark)
    if follower >= 0:
        raise TornTransaction(
            f"records of transaction {mark.n + 1} are committed without its mark: a torn commit. Nothing was "
            f"changed. See "
            f"docs/runbook.md, 'Torn transaction'",
            topic=topic,
            partition=partition,
            position=follower,
        )
    return mark


class _Restore:
    """One attempt; thrown away with its half-filled state when it does not succeed."""

    def __init__(
        self, reader: Reader, place: Place, new_state: Callable[[], State], note: Note, progress: Progress
    ) -> None:
        self.reader, self.place, self.note = WatchedReader(reader, progress), place, note
        self.progress = progress
        progress.done.clear()
        self.names, self.partition = place.names, place.partition
        self.new_state, self.state = new_state, new_state()
        progress.watch(self.state)
        self.unsaved_bytes = self.unsaved_keys = 0
        self.unusable: list[FullRef] = []
        self.decoder = EntryDecoder({name: table.key_type for name, table in self.state.tables.items()})

    def run(self) -> tuple[State, Mark, int, FullRef | None, int]:
        try:
            mark = self._last_mark()
            self.place.check(mark)
            manifest, ref = self._base(mark)
            position, deltas = self._deltas(mark, manifest)
        except frame.BadFrame as error:
            raise self._damaged(f"a record cannot be read: {error}") from error
        finally:
            self.progress.leave()
        return self.state, mark, position, ref, deltas

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

    def _base(self, mark: Mark) -> tuple[Manifest | None, FullRef | None]:
        """The newest full that is complete now; a reference in a mark is only a hint (rule S4)."""
        for ref in sorted(mark.fulls, key=lambda ref: -ref.first):
            try:
                self.progress.enter("full", ref.low, ref.offset)
                return load(self.reader, self.place, ref, mark, self.state, self.decoder), ref
            except FullUnusable as finding:
                self.note("full_unusable", {"full": ref.offset, "n": ref.first, "finding": str(finding)})
                self.unusable.append(ref)
                self.state = self.new_state()
                self.progress.watch(self.state)
        return None, None

    def _deltas(self, mark: Mark, manifest: Manifest | None) -> tuple[int, int]:
        """Apply what came after the base; the position of the newest state, and how many deltas it took.

        The digest is compared once, at the newest mark whose state this is: before the last slice of a fuzzy full the
        state is no transaction's (rule S1).
        """
        topic, applied = self.names.input, 0
        position = manifest.positions[topic] if manifest else -1
        expected = manifest.digest if manifest else b""
        for increment in self._increments(mark, manifest):
            if not increment.mark.delta:
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
            raise self._damaged(f"the full that adopt record {n} names cannot be used, nor a later one: state is gone")
        if n > 0 and adopt is None:
            raise self._damaged(f"no usable full, and the deltas begin with transaction {n}: the state is gone")

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
