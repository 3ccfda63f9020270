"""Finds the newest verifiable state if a restore fails: a full snapshot and the deltas before the chain breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from statehold.errors import DamagedIncrement, TornTransaction
from statehold.ports import OutOfRange, Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Manifest
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents
from statehold.state import digest


class Salvaged(msgspec.Struct, frozen=True):
    """A state whose digest equals the recorded one."""

    contents: Contents
    #: The commit record of its transaction, or one derived from its full snapshot.
    commit_record: CommitRecord
    #: Offset of the manifest of its full snapshot (-1: the beginning), and the number of deltas.
    full: int
    deltas: int

    def position(self, place: Place) -> int:
        return self.commit_record.position(place.input)


def last_readable(reader: Reader, place: Place) -> CommitRecord | None:
    """Return the last readable commit record of this partition; skip everything else."""
    owner, last = (place.names.group, place.partition), None
    for commit_record in _readable_commit_records(reader, place):
        last = commit_record if (commit_record.service, commit_record.partition) == owner else last
    return last


def commit_records_since(reader: Reader, place: Place, n: int, last: CommitRecord) -> list[CommitRecord] | None:
    """Return the commit records of the transactions after `n` up to `last`; None if one of them is unreadable."""
    commit_records = _readable_commit_records(reader, place)
    found = {
        commit_record.n: commit_record
        for commit_record in commit_records
        if commit_record.lineage == last.lineage and n < commit_record.n <= last.n
    }
    return [found[each] for each in sorted(found)] if len(found) == last.n - n else None


def _readable_commit_records(reader: Reader, place: Place) -> Iterator[CommitRecord]:
    topic, partition = place.names.changelog, place.partition
    for batch in reader.read(topic, partition, *reader.bounds(topic, partition)):
        for message in batch:
            data = message.value()
            with suppress(frame.BadFrame):
                if frame.kind_of(data) == b"M" and isinstance(commit_record := records.unpack(data), CommitRecord):
                    yield commit_record


def newest(reader: Reader, place: Place, lineage: str, full: int | None = None) -> Salvaged | None:
    """Return the newest verifiable state of `lineage` ('': any), or with `full` the one built from that snapshot.

    Reads the whole snapshot partition.
    """
    known = [each for each in full_listing.find(reader, place, None, everything=True) if _ours(place, each, lineage)]
    if not lineage and known:
        latest = max(known, key=_time)
        known = [each for each in known if _same_lineage(each, latest)]
    best: Salvaged | None = None
    for base in (*known, None):
        if full is not None and (base is None or base.offset != full):
            continue
        found = _from(reader, place, base, lineage)
        if found is not None and (best is None or found.commit_record.n > best.commit_record.n):
            best = found
        if (
            best is not None
            and base is not None
            and base.manifest is not None
            and best.commit_record.n >= base.manifest.through
        ):
            break  # an older full snapshot reaches no newer state, because the chain is the same
    return best


def _time(full: Full) -> int:
    return full.manifest.time if full.manifest is not None else 0


def _same_lineage(one: Full, other: Full) -> bool:
    return one.manifest is not None and other.manifest is not None and one.manifest.lineage == other.manifest.lineage


def _ours(place: Place, full: Full, lineage: str) -> bool:
    made = full.manifest
    owner = place.names.group, place.partition, place.partitions
    return (
        made is not None
        and (full.ends or not full.finding)
        and (made.service, made.partition, made.partitions) == owner
        and lineage in ("", made.lineage)
    )


def _from(reader: Reader, place: Place, base: Full | None, lineage: str, upto: int | None = None) -> Salvaged | None:
    """Return the newest state built from this full snapshot whose digests all match; None without one."""
    contents, chain = Contents(), Chain(place.names.changelog, place.partition)
    made = base.manifest if base is not None else None
    found: Salvaged | None = None
    if base is not None and made is not None:
        if not past.load_full(reader, place, made, base.offset, contents):
            return None
        chain.last, chain.lineage = made.first, made.lineage
        if made.first == made.through:
            if digest.to_bytes(contents.digest) != made.digest:
                return None
            found = Salvaged(contents, _commit_record_of(made), base.offset, 0)
    deltas = 0
    for increment in _until_broken(reader, place, made.increment if made else -1, chain, upto):
        if not _leads_on(increment, made, chain, lineage):
            break
        commit_record = increment.commit_record
        contents.apply_parts(increment.parts)
        deltas += bool(increment.parts)
        if not commit_record.delta or (made is not None and commit_record.n < made.through):
            continue
        if digest.to_bytes(contents.digest) != commit_record.digest:
            # The last delta is wrong: build the state again, up to the transaction before it.
            return _from(reader, place, base, lineage, found.commit_record.n) if found is not None else None
        found = Salvaged(contents, commit_record, base.offset if base is not None else -1, deltas)
    return found


def _leads_on(increment: Increment, made: Manifest | None, chain: Chain, lineage: str) -> bool:
    commit_record = increment.commit_record
    if lineage and commit_record.lineage != lineage:
        return False
    if made is None:
        return chain.first != commit_record.n or _begins(increment)
    return commit_record.reach <= made.first  # else the deltas need another full snapshot


def _begins(increment: Increment) -> bool:
    """Return True if the state before this transaction is empty."""
    return increment.commit_record.n == 0 or (increment.replacement is not None and increment.replacement.base is None)


def _until_broken(reader: Reader, place: Place, start: int, chain: Chain, upto: int | None) -> Iterator[Increment]:
    try:
        for increment in past.increments(reader, place, start, chain):
            if upto is not None and increment.commit_record.n > upto:
                return
            yield increment
    except (TornTransaction, DamagedIncrement, frame.BadFrame, OutOfRange):
        return


def _commit_record_of(made: Manifest) -> CommitRecord:
    """Return a commit record with the fields that a full snapshot has."""
    return CommitRecord(
        n=made.first,
        attempt="",
        lineage=made.lineage,
        service=made.service,
        partition=made.partition,
        partitions=made.partitions,
        positions=made.positions,
        inputs=made.inputs,
        topic_ids=made.topic_ids,
        digest=made.digest,
        keys=made.keys,
        last_delta=made.first,
        format=made.format,
        schemas=made.schemas,
        types=made.types,
        writer=made.writer,
        time=made.time,
    )
