"""Compares a restored partition with its group and its input, and repeats checks that a short log may fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from statehold.errors import (
    DamagedIncrement,
    KafkaTrouble,
    MixedLineages,
    NoCommitRecord,
    OffsetDisagrees,
    TornTransaction,
)
from statehold.ports import Cancelled, Reader
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import retention_gap
from statehold.worker.common.signals import Signals

T = TypeVar("T")

#: a finding counts once it has lasted this many seconds, or this many attempts, with a pause between two of them
_LASTS: Final = 5.0
_ATTEMPTS: Final = 6
_PAUSE: Final = 1.0


def recheck(attempt: Callable[[], T], tools: Tools, signals: Signals) -> T:
    """Call `attempt` again while it fails because of a short log.

    A leader may briefly report a short log: after the loss of a leader, ListOffsets answered for seconds with an end
    between committed transactions (three brokers, Kafka 4.4, one of them frozen). A short log looks like a torn
    transaction, like damage, or like an offset that is ahead of the last commit record. Only damage stays.

    :raises TornTransaction, OffsetDisagrees, DamagedIncrement, NoCommitRecord: the last attempt failed with it.
    :raises Cancelled: the partition leaves, so the finding is for its next owner.
    """
    until = math.inf
    for _ in range(_ATTEMPTS - 1):
        try:
            return attempt()
        except (TornTransaction, OffsetDisagrees, DamagedIncrement, NoCommitRecord) as finding:
            if signals.leaving():  # a suspended process may have read half before and half after another owner's work
                raise Cancelled from finding
            now = tools.clock()
            until = min(until, now + _LASTS)
            if now >= until:
                raise
            tools.log.warning("kafka_retry", doing="recheck", cause=str(finding))
        signals.any.wait(_PAUSE)
    return attempt()


def require_inputs(tools: Tools, reader: Reader, positions: Mapping[str, int], commit_record: CommitRecord) -> None:
    """Require each input from the state's position on. Blocks. :raises RetentionGap: some of it is gone."""
    for topic in tools.place.names.inputs:
        start, end = reader.bounds(topic, tools.place.partition)
        if positions[topic] < start:
            raise retention_gap(tools.place, positions[topic], f"the topic begins at {start}", topic)
        handled = commit_record.positions[topic]
        if handled > end:
            why = f"the topic ends at {end}: records that were handled are gone"
            raise retention_gap(tools.place, handled, why, topic)


def contradicting(commit_record: CommitRecord, committed: Mapping[str, int | None]) -> dict[str, int]:
    """Return the group's offsets of inputs that contradict the commit record; none if a failed commit explains them.

    `committed`: the group's offset of each input; None: it is missing or expired.
    """
    known = {topic: at for topic, at in committed.items() if at is not None}
    if len(known) == len(committed) and sum(known.values()) == commit_record.start:
        return {}  # the offsets before the last transaction
    return {topic: at for topic, at in known.items() if at != commit_record.positions[topic]}


def compare_with_group(tools: Tools, commit_record: CommitRecord, *, others: bool) -> None:
    """Compare state generation and transaction number with those that the owners committed with their group offsets.

    A later number of this partition's own offset shows a log that was cut, even if the missing transactions handled no
    record. `others`: all partitions must continue from the same state-replacement record (rule M2). The tools ensure
    that, and this checks it. Call it after reading the partition's own offset, which waits for the end of a transaction
    over all partitions. Without an answer the partition starts all the same.

    :raises DamagedIncrement: a later commit record was committed with this partition's offset.
    :raises MixedLineages: another partition has another state generation.
    """
    place = tools.place
    try:
        noted = tools.offsets.lineages(place.names.input, place.partitions)
    except KafkaTrouble as error:
        tools.log.warning("kafka_retry", doing="compare with the group's offsets", cause=str(error))
        return
    position = commit_record.positions[place.names.input]
    own = noted.pop(place.partition, None)
    if own is not None and own.lineage == commit_record.lineage and own.n > commit_record.n:
        raise DamagedIncrement(
            f"transaction {own.n} has committed, as the group's offset shows, and the last commit record is "
            f"{commit_record.n}: the brokers have lost the end of {place.names.changelog}, perhaps by an unclean "
            "leader election. Nothing was changed. Next: see DamagedIncrement in the runbook",
            topic=place.names.input,
            partition=place.partition,
            position=position,
        )
    differing: dict[int, str] = {}
    for partition, each in noted.items():
        if each.lineage not in ("", commit_record.lineage):
            differing[partition] = each.lineage
    if others and differing:
        partition, lineage = min(differing.items())
        raise MixedLineages(
            f"its state generation is {commit_record.lineage}, that of partition {partition} is {lineage} "
            f"({len(differing)} differ): only some partitions were restored, migrated or moved. Nothing was changed. "
            "Next: `statehold snapshot list` shows each; restore all of them to one state generation",
            topic=place.names.input,
            partition=place.partition,
            position=position,
        )
