"""`statehold snapshot backup`: copies a service's stored state, and optionally its inputs, to files."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from statehold.admin.state.stopped_service import inputs_at
from statehold.admin.topics import require
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import DamagedIncrement, ToolRefused
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.ports import OutOfRange, Reader
from statehold.snapshot import full_listing
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import ArchiveFile, BackupManifest, FileWriter, Role, SavedPartition
from statehold.snapshot.backup.reading import ArchiveReader, place_of
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import past
from statehold.snapshot.restore.discovery import last_commit_record, require_commit_record
from statehold.snapshot.store.base import SegmentGone, roots_of
from statehold.snapshot.store.fetch import segments_of
from statehold.state import digest


def backup(
    settings: Settings, names: Names, outputs: Sequence[str], to: Path, *, with_input: bool = False
) -> BackupManifest:
    """Copy the service's stored state to folder `to`, read it back and verify it. The service may be running.

    Copies committed records only. Copies the changelog before the snapshots, so that the backup contains every full
    snapshot that a commit record refers to. Copies the segments of full snapshots in a store, too.

    :raises UsageError: `to` is not empty. :raises NoCommitRecord: the service was never started.
    :raises StateRefused: the service could not restore the state either. :raises ToolRefused: the service truncated
        its topics meanwhile.
    """
    admin = Admin(settings, names.group)
    facts = require(admin, names, ())
    archive.prepare(to)
    found = admin.describe(list(outputs)) if outputs else {}
    ids = {topic: facts[topic].id for topic in (*names.inputs, names.changelog, names.snapshot)}
    count = facts[names.input].partitions
    manifest = BackupManifest.of(
        names,
        uuid.uuid4().hex[:16],
        [SavedPartition(p, 0, 0, 0, 0, "", "") for p in range(count)],
        [],
        topic_ids=ids,
        outputs={topic: fact.partitions for topic, fact in found.items() if fact is not None},
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    with closing(CommittedReader(settings, names.group, admin)) as reader:
        try:
            later: list[_Copy] = []
            for partition in range(count):
                place = place_of(to, manifest, partition)
                later += _partition(reader, manifest, to, place, roots_of(settings), with_input=with_input)
            # After the states of all partitions, because a record that one of them has sent must not be missing (H4).
            manifest.files.extend(_copy(reader, to, "input", *each) for each in later)
        except OutOfRange as error:
            raise ToolRefused(
                f"{error}: the service truncated its topics behind a newer full snapshot. The backup is incomplete. "
                f"Next: remove {to} and run the command again"
            ) from error
    archive.write_manifest(to, manifest)
    return manifest


class _Copy(NamedTuple):
    """An input to be copied: its topic and partition, the first offset, and its number among the inputs."""

    topic: str
    partition: int
    start: int
    number: int


def _partition(
    reader: CommittedReader, manifest: BackupManifest, to: Path, place: Place, roots: Sequence[str], *, with_input: bool
) -> list[_Copy]:
    """Copy one partition; return the copies of what the service sends to itself, which come last."""
    names, partition = place.names, place.partition
    manifest.files.append(_copy(reader, to, "increment", names.changelog, partition))
    manifest.files.append(_copy(reader, to, "full", names.snapshot, partition))
    kept = ArchiveReader(to, manifest)
    manifest.files.extend(copy_segments(kept, to, place, roots))
    commit_record = require_commit_record(kept, names.changelog, partition, "back up the state")
    proven = past.at(kept, place, past.LATEST)  # reads the files only and compares the digest
    oldest = _oldest(kept, place)
    manifest.partitions[partition] = SavedPartition(
        partition,
        commit_record.n,
        commit_record.position(names.input),
        min((sum(each.values()) for each in oldest), default=0),
        proven.contents.keys,
        digest.show(commit_record.digest),
        commit_record.lineage,
    )
    later: list[_Copy] = []
    for topic, position in inputs_at(commit_record, names).items() if with_input else ():
        low = reader.bounds(topic, partition)[0]
        if low > position:
            raise DamagedIncrement(
                f"back up the input: it begins at {low}, but the next record is {position}: records are lost",
                topic=topic,
                partition=partition,
                position=position,
            )
        start = max(low, min((each[topic] for each in oldest if topic in each), default=0))
        copy = _Copy(topic, partition, start, names.inputs.index(topic) + 1)
        if topic in names.rekeys:
            later.append(copy)
        else:
            manifest.files.append(_copy(reader, to, "input", *copy))
    return later


def _copy(
    reader: CommittedReader,
    to: Path,
    role: Role,
    topic: str,
    partition: int,
    start: int | None = None,
    number: int = 1,
) -> ArchiveFile:
    low, end = reader.bounds(topic, partition)
    start = low if start is None else start
    writing = FileWriter(to, role, topic, partition, number)
    for batch in reader.read(topic, partition, start, end):
        writing.add(batch)
    return writing.done(start, end)


def copy_segments(kept: Reader, to: Path, place: Place, roots: Sequence[str]) -> list[ArchiveFile]:
    """Copy the segments of full snapshots in a store. Leave out a snapshot with a missing segment.

    The caller verifies afterwards that the remaining snapshots suffice.

    :raises StoreTrouble: the store does not answer.
    """
    topic, partition = place.names.snapshot, place.partition
    files: list[ArchiveFile] = []
    # id -> segments that are copied; full snapshots that share chunks have one id
    done: dict[str, int] = {}
    for _, full in full_listing.manifests(kept, place, *kept.bounds(topic, partition)):
        if isinstance(full, str) or not full.store:
            continue
        copied: list[ArchiveFile] = []
        try:
            for key, data in segments_of(full, roots, done.get(full.full, 0)):
                copied.append(archive.add_segment(to, topic, partition, key, data))
        except SegmentGone:
            for file in copied:
                (to / file.name).unlink()
        else:
            files += copied
            done[full.full] = full.segments
    return files


def _oldest(reader: ArchiveReader, place: Place) -> list[dict[str, int]]:
    """Return the inputs' offsets of the states that need no older record: usable full snapshots, and the first delta.

    The oldest stored state is one of them.
    """
    commit_record = last_commit_record(reader, place.names.changelog, place.partition)
    known: Iterable[full_listing.Full] = full_listing.find(reader, place, commit_record)
    found: list[Mapping[str, int]] = [
        each.manifest.positions for each in known if each.manifest is not None and not each.finding
    ]
    first = next(past.increments(reader, place), None)
    if first is not None and (first.commit_record.n == 0 or first.replacement is not None):
        found.append(first.commit_record.positions)
    # A state of before a change of the inputs does not know an input that was added.
    return [{topic: positions[topic] for topic in place.names.inputs if topic in positions} for positions in found]
