"""The errors that end live work, worded in one place."""

from __future__ import annotations

from statehold.errors import Fenced, Lost, OutputRefused, PartitionError, RetentionGap, StateholdError
from statehold.snapshot.format.partition_identity import Place


class ProducerDropped(Exception):
    """The producer must be replaced; the last commit record shows how its last transaction ended."""


def output_refused(place: Place, why: str, position: int, topic: str = "") -> OutputRefused:
    return OutputRefused(
        f"{why}. Nothing was skipped. Next: fix that and run `statehold retry {place.partition}`",
        topic=topic or place.input,
        partition=place.partition,
        position=position,
    )


def fenced(place: Place, error: StateholdError, position: int, *, lost: bool) -> Fenced | Lost:
    """Return Lost if the group revoked the partition first, else Fenced."""
    kind = Lost if lost else Fenced
    return kind(
        f"commit: a newer owner has fenced this one: {error}. Uncommitted work is rolled back; the new owner redoes it",
        topic=place.input,
        partition=place.partition,
        position=position,
    )


def missing_records(place: Place, position: int, offered: int) -> PartitionError:
    return PartitionError(
        f"take a batch: records from {position} to {offered} never arrived, which is a bug in statehold. Nothing was "
        f"skipped. Next: run `statehold retry {place.partition}`, which restores",
        topic=place.input,
        partition=place.partition,
        position=position,
    )


def retention_gap(place: Place, position: int, why: str, topic: str = "") -> RetentionGap:
    """Return the error for records of an input, by default the first one, that are gone."""
    return RetentionGap(
        f"the input no longer holds the records from {position} on: {why}. Nothing was skipped. Next: restore the "
        f"records, or stop the service and run `statehold repair accept-gap MODULE:SERVICE --why TEXT --dry-run`, "
        f"which shows where it can continue",
        topic=topic or place.input,
        partition=place.partition,
        position=position,
    )
