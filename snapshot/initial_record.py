"""Begins the state of a partition: the initial commit record, from which every chain starts (rule D5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from statehold.ports import Transactions
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Header, Part, position_of
from statehold.state import digest


def write_initial_record(
    producer: Transactions,
    place: Place,
    lineage: str,
    positions: Mapping[str, int],
    time: int,
    *,
    state_digest: bytes = digest.to_bytes(0),
    keys: int = 0,
    schemas: Mapping[str, int] = MappingProxyType({}),
    types: Mapping[str, str] = MappingProxyType({}),
    chunks: Sequence[list[msgspec.Raw]] = (),
    format: int = frame.NEWEST,  # no older release has written to this partition
) -> CommitRecord:
    """Fence, begin, and send header, delta and commit record of transaction 0; the caller commits. Blocks.

    `positions` are next offsets by topic, `time` is in milliseconds since 1970. Without `chunks` the state is empty.

    :raises KafkaTrouble: nothing is committed then.
    """
    start = position_of(positions, place.names.inputs)
    commit_record = CommitRecord(
        n=0,
        attempt=producer.attempt,
        lineage=lineage,
        service=place.names.group,
        partition=place.partition,
        partitions=place.partitions,
        positions=dict(positions),
        inputs=place.names.recorded,
        start=start,
        topic_ids=place.topic_ids,
        digest=state_digest,
        keys=keys,
        parts=len(chunks),
        format=format,
        schemas=dict(schemas),
        types=dict(types),
        writer=place.writer,
        time=time,
    )
    producer.fence(lambda: False)
    producer.begin()
    header = Header(0, producer.attempt, lineage, start, place.writer)
    parts = (Part(0, producer.attempt, k, entries) for k, entries in enumerate(chunks))
    written: list[Header | Part | CommitRecord] = [header, *parts, commit_record]
    for record in written:
        producer.send_increment(place.names.changelog, place.partition, records.pack(record, format))
    return commit_record
