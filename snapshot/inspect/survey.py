"""Surveys a partition's snapshots and the restore that they allow. Fast, because it reads no chunks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from statehold.errors import PartitionError
from statehold.ports import Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, CommitRecord
from statehold.snapshot.full_listing import Full
from statehold.snapshot.restore.discovery import last_commit_record


class Survey(msgspec.Struct, frozen=True):
    """Survey of one partition. Offsets are of the changelog and snapshot topics, positions of the input."""

    partition: int
    commit_record: CommitRecord | None
    full_snapshots: list[Full]
    #: First offset and last stable offset.
    increment: tuple[int, int]
    full: tuple[int, int]
    #: The full snapshot that a restore would use.
    choice: Full | None
    why: str
    #: True if no deltas follow that snapshot, so a restore replays the input (log event `replaying_far`).
    far: bool = False
    #: First stored offset of each input.
    begins: Mapping[str, int] = MappingProxyType({})
    #: The obstacle to a restore, with the next command; '' if none is known.
    trouble: str = ""


def survey(reader: Reader, place: Place, *, everything: bool = False) -> Survey:
    """Survey a partition. Damage is reported in `trouble`, not raised.

    :raises KafkaTrouble, RestoreTimeout: Kafka did not answer.
    """
    names, partition = place.names, place.partition
    commit_record, trouble = None, ""
    increment = reader.bounds(names.changelog, partition)
    try:
        commit_record = last_commit_record(reader, names.changelog, partition)
        if commit_record is not None:
            place.check(commit_record)
    except PartitionError as error:
        trouble = str(error)
    except frame.BadFrame as error:
        trouble = (
            f"{names.changelog}[{partition}]: read the last commit record: {error}. Next: run `statehold snapshot "
            f"verify`, which names the damaged record"
        )
    if commit_record is None and not trouble:
        trouble = _no_commit_record(increment)
    found = full_listing.find(reader, place, commit_record, everything=everything)
    begins = {topic: reader.bounds(topic, partition)[0] for topic in names.inputs}
    choice, why, fault = choose(commit_record, found, increment)
    far = commit_record is not None and choice is None and not place.deltas_reach(commit_record.adopted, commit_record)
    if commit_record is not None and (far or fault):
        choice, why, fault = choose_far(place, commit_record, found, increment, begins)
        far = not fault
    return Survey(
        partition=partition,
        commit_record=commit_record,
        full_snapshots=found,
        increment=increment,
        full=reader.bounds(names.snapshot, partition),
        choice=choice,
        why=why,
        far=far,
        begins=begins,
        trouble=trouble or fault,
    )


def choose(
    commit_record: CommitRecord | None, found: list[Full], increment: tuple[int, int]
) -> tuple[Full | None, str, str]:
    """Return the full snapshot that a restore would use, the reason, and the fault if no restore is possible."""
    if commit_record is None:
        return None, "nothing to restore", ""
    usable = [full for full in found if not full.finding and (full.referred or full.maker == COMPACTION)]
    usable = [full for full in usable if full.manifest is not None and full.manifest.increment >= increment[0]]
    refused = [f"full@{full.offset}: {full.finding}" for full in found if full.finding and full.referred]
    if usable and usable[0].manifest is not None:
        behind = commit_record.n - usable[0].manifest.first
        why = (
            f"newest usable full snapshot, then {behind} transaction{'s' if behind > 1 else ''} after it"
            if behind
            else "newest usable full snapshot, no transaction after it"
        )
        return usable[0], "; ".join([why, *refused]), ""
    if increment[0] == 0 or commit_record.adopted > 0:
        why = f"no full snapshot: all {commit_record.n - commit_record.adopted} transactions from the beginning"
        return None, "; ".join([why, *refused]), ""
    cause = "; ".join(refused) or "the last commit record refers to none"
    fault = (
        f"no usable full snapshot ({cause}), and the changelog begins at offset {increment[0]}. "
        f"Next: see DamagedIncrement in the runbook"
    )
    return None, "nothing to restore from", fault


def choose_far(
    place: Place,
    commit_record: CommitRecord,
    found: list[Full],
    increment: tuple[int, int],
    begins: Mapping[str, int],
) -> tuple[Full | None, str, str]:
    """Do the same as `choose` if no usable full snapshot is followed by deltas, so that the input must be replayed.

    `begins`: the first stored offset of each input.
    """
    named = {topic: topic if len(begins) > 1 else "the input" for topic in begins}
    missing = []
    for full in found:
        made = full.manifest
        if made is None or place.refuses(made, commit_record, replayed=True) or made.increment < increment[0]:
            continue
        at = made.position(place.input)
        lacking = [topic for topic, begin in begins.items() if made.positions[topic] < begin]
        if not lacking:
            count = commit_record.position(place.input) - at
            return full, f"the deltas do not reach back to it: {count} records from {at} are replayed", ""
        missing += [f"full@{full.offset} needs {named[topic]} from {made.positions[topic]}" for topic in lacking]
    if commit_record.adopted > 0:
        return None, f"no full snapshot: the records since transaction {commit_record.adopted} are replayed", ""
    if increment[0] == 0 and not any(begins.values()):
        return None, f"no full snapshot: all {commit_record.position(place.input)} records are replayed", ""
    cause = "; ".join([*missing, *(f"full@{full.offset}: {full.finding}" for full in found if full.finding)])
    fault = (
        f"no usable full snapshot ({cause or 'the last commit record refers to none'}), the changelog begins at offset "
        f"{increment[0]}, {', '.join(f'{named[topic]} at {begin}' for topic, begin in begins.items())}. Next: see "
        f"NoUsableFull in the runbook"
    )
    return None, "nothing to restore from", fault


def _no_commit_record(increment: tuple[int, int]) -> str:
    start, end = increment
    if end == 0:
        return "no commit record: the service was never started. Next: run `statehold topics create`"
    return f"offsets {start} to {end} hold no commit record any more. Next: see DamagedIncrement in the runbook"
