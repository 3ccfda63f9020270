"""Applies the deltas after a base in order and checks every record of the chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from statehold.errors import DamagedIncrement, DigestMismatch
from statehold.messages.pinned_command import Pinned, Placed, TimeLimit
from statehold.ports import Reader
from statehold.snapshot.format import records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, EntryDecoder, Header, Manifest, StateReplacement
from statehold.snapshot.format.side_inputs import placed
from statehold.snapshot.full import FullUnusable
from statehold.snapshot.restore.progress import Progress
from statehold.state import digest
from statehold.state.state import State


class AppliedDeltas(msgspec.Struct):
    """The result of `apply_deltas`."""

    #: next offsets of the state, by topic; empty: of the first commit record
    positions: Mapping[str, int]
    #: the digest that the state's writer recorded
    digest: bytes
    deltas: int = 0
    transactions: int = 0
    #: bytes of the transactions with content, and keys in deltas
    unsaved_bytes: int = 0
    unsaved_keys: int = 0
    #: pinned commands and time limits after the last delta: the replay handles them at their positions
    pinned: list[Placed[Pinned | TimeLimit]] = []
    #: with several inputs: the order of the records after the last delta, transaction by transaction
    runs: list[bytes] = []


def apply_deltas(
    reader: Reader,
    place: Place,
    state: State,
    decoder: EntryDecoder,
    progress: Progress,
    commit_record: CommitRecord,
    manifest: Manifest | None,
    *,
    replayed: bool,
) -> AppliedDeltas:
    """Apply the deltas after the full snapshot of `manifest`, which `state` holds, or after an empty state.

    `replayed`: check the chain, but apply nothing.

    The digest is compared once, at the newest commit record with a delta. Before the last slice of a fuzzy full the
    state is that of no transaction (rule S1).

    :raises TornTransaction, DamagedIncrement: the chain has a fault. :raises FullUnusable: it does not reach the base.
    :raises DigestMismatch: the state is not the one that its writer recorded.
    """
    topic = place.names.input
    done = AppliedDeltas(manifest.positions, manifest.digest) if manifest else AppliedDeltas({}, b"")
    for increment, size in _increments(reader, place, progress, commit_record, manifest):
        newest = increment.commit_record
        position = newest.position(topic)
        done.transactions += 1
        if increment.parts or position != newest.start:
            done.unsaved_bytes += size
        if not done.positions:
            done.positions, done.digest = newest.positions, newest.digest
        if replayed or newest.last_delta != newest.n:
            done.pinned += placed(newest, topic, newest.pinned)
            done.runs += [newest.runs] if newest.runs else []
            continue
        done.pinned.clear()
        done.runs.clear()
        for part in increment.parts:
            for raw in part.entries:
                changes = decoder.decode(raw)
                state.load(changes)
                done.unsaved_keys += len(changes.keys)
        done.deltas, done.positions, done.digest = done.deltas + 1, newest.positions, newest.digest
    progress.enter("digest")
    state.loaded()
    found = digest.to_bytes(state.digest)
    if found != done.digest:
        raise DigestMismatch(
            f"the restored state's digest is {digest.show(found)}, its writer recorded {digest.show(done.digest)}. "
            f"Nothing was changed. Next: `statehold retry {place.partition}` restores again; if it fails again, see "
            f"DigestMismatch in the runbook",
            topic=topic,
            partition=place.partition,
        )
    return done


def _increments(
    reader: Reader, place: Place, progress: Progress, commit_record: CommitRecord, manifest: Manifest | None
) -> Iterator[tuple[Increment, int]]:
    """Yield the transactions after the base, each with its size in bytes."""
    topic, partition = place.names.changelog, place.partition
    start, end = reader.bounds(topic, partition)
    chain = Chain(topic, partition)
    if manifest is not None:
        start = max(start, manifest.increment)
        chain.last, chain.lineage = manifest.first, manifest.lineage
    elif commit_record.adopted > 0:
        chain.last = commit_record.adopted - 1  # earlier transactions belong to another state generation (rule S6)
    progress.enter("deltas", start, end)
    size, truncated = 0, start > 0
    for batch in reader.read(topic, partition, start, end):
        for message in batch:
            data = message.value()
            record = records.unpack(data)
            if truncated:
                _check_first(record, chain)
                truncated = False
            increment = chain.feed(message.offset() or 0, record)
            size += len(data)
            if increment is None:
                continue
            n, replacement = increment.commit_record.n, increment.replacement
            if manifest is None and chain.first == n and (n > 0 or replacement is not None):
                _check_beginning(n, replacement)
            yield increment, size
            size = 0
    chain.finish(end)
    if chain.last is None or chain.last < commit_record.n:
        raise damaged(
            place, f"the chain ends with transaction {chain.last}, the last commit record is {commit_record.n}"
        )


def _check_first(record: records.Record, chain: Chain) -> None:
    """Reject a log that was cut within a transaction: that transaction is not torn, only its beginning is gone."""
    n = getattr(record, "n", 0)
    if not isinstance(record, Header) and (chain.last is None or n > chain.last):
        raise FullUnusable(f"the log begins within transaction {n}: earlier records are gone")


def _check_beginning(n: int, replacement: StateReplacement | None) -> None:
    """Require a state-replacement record without a base: the state before it is empty, as before the initial record."""
    if replacement is None:
        raise FullUnusable(f"the deltas begin with transaction {n}: earlier ones are gone")
    if replacement.base is not None:
        raise FullUnusable(f"state-replacement record {n} names a full snapshot, from which the deltas continue")


def damaged(place: Place, finding: str) -> DamagedIncrement:
    """Return the error for a changelog topic that differs from what its writers left."""
    return DamagedIncrement(
        f"{finding}. Nothing was changed. Next: see DamagedIncrement in the runbook, and `statehold repair rebase "
        f"--help`",
        topic=place.names.changelog,
        partition=place.partition,
    )
