"""Replaces the states of a stopped service: builds and commits state-replacement records (rules S6, M2, M3).

A tool that repairs, migrates, moves or restores states fences first, then reads the last commit records, writes the
full snapshots that the state-replacement records name (first = through = n, the new state generation), and commits all
partitions in one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from statehold.errors import ToolRefused, UsageError
from statehold.messages.command import Command
from statehold.ports import Transactions
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Effect, FullRef, Header, StateReplacement, position_of
from statehold.state import digest
from statehold.state.state import State


class ReplacementReason(msgspec.Struct, frozen=True, kw_only=True):
    """Who replaces a state, and why; the changelog keeps it."""

    tool: str
    who: str
    why: str
    notes: dict[str, str] = {}


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """The state from which one partition continues.

    `old` is its last commit record, read after the fence; None begins an empty changelog.
    """

    place: Place
    old: CommitRecord | None
    lineage: str
    #: None: the state is empty
    base: FullRef | None
    digest: int
    keys: int
    #: next offset of each input
    inputs: Mapping[str, int]
    #: the inputs of the old state, if the tool changes them (rule M5); empty: they stay
    former_inputs: tuple[str, ...] = ()
    #: pending side effects that stay pending
    effects: tuple[Effect, ...] = ()
    #: versions of the values in the state; by default those of the old commit record
    schemas: dict[str, int] | None = None
    #: types of the tables in the state; by default those of the old commit record
    types: dict[str, str] | None = None
    #: without `old`: the last commit record of the state's former place
    source: CommitRecord | None = None
    #: without `old`: the number of its first transaction, after those that the origins of its outputs name (rule T3)
    begin: int = 0
    #: next offset of the control topic; None: that of `old`. Earlier commands were for the former place
    control: int | None = None
    #: next offsets of the retry topics, without `old`
    retries: Mapping[str, int] = MappingProxyType({})
    #: without `old`: the pause that stays in force
    paused: Command | None = None

    @property
    def position(self) -> int:
        """The partition's position: see `position_of`."""
        return sum(self.inputs.values())

    @property
    def n(self) -> int:
        return self.begin if self.old is None else self.old.n + 1

    def check(self) -> None:
        """Require that a restore could use the records. :raises UsageError: it could not."""
        base, names = self.base, self.place.names
        like = self.old or self.source
        built = (like.inputs if like is not None else names.recorded) or self.former_inputs or (names.input,)
        known = like is None or not self.former_inputs or position_of(like.positions, self.former_inputs) >= 0
        if not known or (built, tuple(self.inputs)) != (self.former_inputs or names.inputs, names.inputs):
            raise UsageError(
                f"{names.changelog}[{self.place.partition}]: replace the state: it was built from {', '.join(built)} "
                f"with positions of {', '.join(self.inputs)}, not from {', '.join(names.inputs)}"
            )
        if base is None and (self.keys, self.digest) != (0, 0):
            raise UsageError(
                f"{names.changelog}[{self.place.partition}]: a state of {self.keys} keys needs a full snapshot"
            )
        if base is not None and (base.first, base.through) != (self.n, self.n):
            raise UsageError(
                f"{names.snapshot}[{self.place.partition}]@{base.offset}: a full snapshot of transactions {base.first} "
                f"to {base.through} cannot be the base of state-replacement record {self.n}"
            )
        if self.old is not None and self.old.lineage == self.lineage:
            raise UsageError(f"{names.changelog}[{self.place.partition}] already has state generation {self.lineage}")


class DepartingPartition(NamedTuple):
    """A partition that the same transaction closes, and the inputs in which its state continues."""

    place: Place
    last: CommitRecord
    #: one, or several with commas between
    into: str

    def records(self, attempt: str, now: float) -> tuple[Header, CommitRecord]:
        """Return header and commit record. State, position and state generation stay, so that tools can read them."""
        last, n = self.last, self.last.n + 1
        position = last.position(self.place.input)
        commit_record = msgspec.structs.replace(
            last,
            n=n,
            attempt=attempt,
            start=position,
            runs=b"",
            parts=0,
            outputs=0,
            commands=(),
            pinned=(),
            time_limit=0,
            moved=self.into,
            format=frame.NEWEST,  # because an older release would continue here
            writer=self.place.writer,
            time=int(now * 1000),
        )
        return Header(n, attempt, last.lineage, position, self.place.writer), commit_record


class Adopted(NamedTuple):
    """The records of one partition, in order; the group's offset is sent between the second and the last."""

    header: Header
    replacement: StateReplacement
    commit_record: CommitRecord


def new_lineage() -> str:
    """Return a new state generation for all partitions of a service; the runtime rejects a mixture."""
    return uuid.uuid4().hex[:16]


def require_complete(place: Place, last: CommitRecord, newest: int, digest_: bytes) -> None:
    """Check that the newest stored state, at position `newest`, is the state of the last commit record.

    :raises ToolRefused: it is not, because records or commands would have to be replayed.
    """
    position = last.position(place.input)
    if newest != position or digest_ != last.digest:
        raise ToolRefused(
            f"{place.input}[{place.partition}]@{position}: read the state: the newest stored state is at {newest}"
            f"{' with another digest' if newest == position else ''}. Nothing was changed. Next: start the "
            f"service and stop it with snapshot.on_stop, which writes a full snapshot of the last commit record"
        )


def require_current(place: Place, last: CommitRecord, newest: int, state: State) -> None:
    """Do the same as `require_complete` with a state that was restored."""
    require_complete(place, last, newest, digest.to_bytes(state.digest))


def boundary(
    place: Place,
    lineage: str,
    n: int,
    inputs: Mapping[str, int],
    state: State,
    like: CommitRecord,
    now: float,
) -> CommitRecord:
    """Return the commit boundary for the `FullWriter` of a full snapshot that state-replacement record `n` will name.

    `inputs`: the next offset of each input. The versions and types of values are those of `like`. `now` is in seconds
    since 1970.
    """
    return CommitRecord(
        format=frame.NEWEST,
        schemas=like.schemas,
        types=like.types,
        n=n,
        attempt="",
        lineage=lineage,
        service=place.names.group,
        partition=place.partition,
        partitions=place.partitions,
        positions=dict(inputs),
        inputs=place.names.recorded,
        topic_ids=place.topic_ids,
        digest=digest.to_bytes(state.digest),
        keys=state.keys,
        last_delta=n,
        time=int(now * 1000),
    )


def records_of(adoption: Adoption, attempt: str, reason: ReplacementReason, now: float) -> Adopted:
    """Return header, state-replacement record and commit record; `now` is in seconds since 1970.

    The commit record is an ordinary one, so a restore finds it as the last commit record, with all that it needs. It
    counts as an empty delta, because the state at it is complete.

    :raises UsageError: see `Adoption.check`.
    """
    adoption.check()
    place, n, old = adoption.place, adoption.n, adoption.old or adoption.source
    positions, state = _positions(adoption), digest.to_bytes(adoption.digest)
    replacement = StateReplacement(
        n=n,
        attempt=attempt,
        lineage=adoption.lineage,
        old_lineage=old.lineage if old else "",
        base=adoption.base,
        old_digest=old.digest if old else b"",
        digest=state,
        old_keys=old.keys if old else 0,
        keys=adoption.keys,
        old_positions=old.positions if old else {},
        positions=positions,
        old_partitions=old.partitions if old else 0,
        partitions=place.partitions,
        tool=reason.tool,
        who=reason.who,
        why=reason.why,
        time=int(now * 1000),
        notes=reason.notes,
    )
    commit_record = CommitRecord(
        n=n,
        attempt=attempt,
        lineage=adoption.lineage,
        service=place.names.group,
        partition=place.partition,
        partitions=place.partitions,
        positions=positions,
        inputs=place.names.recorded,
        start=adoption.position,
        topic_ids=place.topic_ids,
        digest=state,
        keys=adoption.keys,
        last_delta=n,
        adopted=n,
        full_snapshots=(adoption.base,) if adoption.base else (),
        effects=adoption.effects,
        paused=adoption.paused if adoption.old is None else adoption.old.paused,  # only an operator ends a pause
        format=frame.NEWEST,  # because releases of format 1 do not know state-replacement records
        schemas=(old.schemas if old else {}) if adoption.schemas is None else adoption.schemas,
        types=(old.types if old else {}) if adoption.types is None else adoption.types,
        writer=place.writer,
        time=replacement.time,
    )
    return Adopted(Header(n, attempt, adoption.lineage, commit_record.start, place.writer), replacement, commit_record)


def _positions(adoption: Adoption) -> dict[str, int]:
    """Return the positions, so that the handled commands and retried records are not handled again."""
    names, old = adoption.place.names, adoption.old.positions if adoption.old else adoption.retries
    before = old.get(names.control, 0) if adoption.control is None else adoption.control
    tried = {topic: at for topic, at in old.items() if names.is_for_retries(topic)}
    return {**adoption.inputs, **tried} | ({names.control: before} if before > 0 else {})


def commit(
    producer: Transactions,
    membership: Any,
    adoptions: Sequence[Adoption],
    reason: ReplacementReason,
    now: float,
    leaving: Sequence[DepartingPartition] = (),
) -> Mapping[int, CommitRecord]:
    """Replace all states in one transaction of a producer that has fenced. Return the new commit records by partition.

    `leaving` are partitions of another input, which end here. Fence the ids of all other partitions too, before reading
    their last commit records. `membership` belongs to a member of the group, so that the transaction fails if the group
    has rebalanced meanwhile. As in every transaction the commit records come last, after the offsets.

    :raises UsageError: nothing was written.
    :raises TransactionAborted, ProducerFenced: nothing was committed.
    :raises OutcomeUnknown: fence again and read the last commit records: all of them are the new ones, or none is.
    """
    written = {a.place.partition: records_of(a, producer.attempt, reason, now) for a in adoptions}
    if not adoptions or len(written) < len(adoptions) or len({a.lineage for a in adoptions}) > 1:
        raise UsageError("the state of each partition is replaced once, and all of them get one state generation")
    topic = adoptions[0].place.names.changelog
    producer.begin()
    for partition, (header, replacement, commit_record) in written.items():
        producer.send_increment(topic, partition, records.pack(header, commit_record.format))
        producer.send_increment(topic, partition, records.pack(replacement, commit_record.format))
    closed = [(each.place, *each.records(producer.attempt, now)) for each in leaving]
    for place, header, commit_record in closed:
        producer.send_increment(place.names.changelog, place.partition, records.pack(header, commit_record.format))
    offsets = {(topic, each.place.partition): at for each in adoptions for topic, at in each.inputs.items()}
    producer.send_all_offsets(offsets, membership, adoptions[0].lineage)
    for partition, (_, _, commit_record) in written.items():
        producer.send_increment(topic, partition, records.pack(commit_record))
    for place, _, commit_record in closed:
        producer.send_increment(
            place.names.changelog, place.partition, records.pack(commit_record, commit_record.format)
        )
    producer.commit()
    return {partition: commit_record for partition, (_, _, commit_record) in written.items()}
