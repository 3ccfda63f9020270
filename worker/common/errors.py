"""The errors with which live work ends, worded in one place."""

from __future__ import annotations

from statehold.errors import Fenced, Lost, OutputRefused, PartitionError, RetentionGap, StateholdError
from statehold.snapshot.format.partition_identity import Place


class ProducerDropped(Exception):
    """The producer must be replaced, and the last mark settles how its last transaction ended."""


def refused(place: Place, why: str, position: int) -> OutputRefused:
    return OutputRefused(
        f"{why}. Nothing was skipped; mend that, then `statehold retry {place.partition}`",
        topic=place.input,
        partition=place.partition,
        position=position,
    )


def fenced(place: Place, error: StateholdError, position: int, *, lost: bool) -> Fenced | Lost:
    """Which of the two it is called depends on whether the group has told us first."""
    kind = Lost if lost else Fenced
    return kind(
        f"a newer owner has fenced this one ({error}); what was not committed is thrown away",
        topic=place.input,
        partition=place.partition,
        position=position,
    )


def missing(place: Place, position: int, offered: int) -> PartitionError:
    return PartitionError(
        f"records from {position} to {offered} never arrived: nothing was skipped; this is a bug in statehold, "
        f"`statehold retry {place.partition}` restores",
        topic=place.input,
        partition=place.partition,
        position=position,
    )


def gap(place: Place, position: int, why: str) -> RetentionGap:
    return RetentionGap(
        f"records from {position} on are needed and not there: {why}. Nothing was skipped. Bring the records "
        f"back, or stop the service: `statehold repair accept-gap MODULE:SERVICE --why ... --dry-run` shows where "
        f"it can go on",
        topic=place.input,
        partition=place.partition,
        position=position,
    )
