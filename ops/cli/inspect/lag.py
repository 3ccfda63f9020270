"""`statehold lag`: shows how far a service is behind, in records and in seconds."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Final

import typer

from statehold.common.exit_codes import Answer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.reports.lag import Lag, Lags

_COLUMNS: Final = ("partition", "position", "end", "records behind", "seconds behind", "hidden by a transaction")
_LATER: Final = "tried later"


@with_subject
def lag(
    about: Subject,
    partitions: Partitions = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--most", min=0, metavar="RECORDS", help="Exit with 1 if a partition is further behind than this."
        ),
    ] = None,
    most_seconds: Annotated[
        float | None,
        typer.Option(
            "--most-seconds", min=0, metavar="SECONDS", help="Exit with 1 if a partition is further behind than this."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each partition is behind: offsets to the end, and the age of the next record.

    statehold lag order_totals.app:service --most-seconds 60

    Exit code 0: within --most and --most-seconds; 1: further behind.
    """
    names = about.names
    with closing(Lags(about.settings, names)) as lags:
        shown = lags.now(partitions_of(partitions))
    if as_json:
        output.print_json(shown)
    else:
        _print(shown)
    late = [each for each in shown if _exceeds(each, most, most_seconds)]
    if late:
        worst = max(late, key=lambda each: each.records)
        output.complain(
            f"{names.group}: {len(late)} partition(s) too far behind, partition {worst.partition} by {worst.records} "
            f"records and {worst.seconds:g} s; `statehold top {names.options}` shows why"
        )
        raise typer.Exit(Answer.NO)


def _exceeds(each: Lag, records: int | None, seconds: float | None) -> bool:
    return (records is not None and each.records > records) or (seconds is not None and each.seconds > seconds)


def _print(shown: list[Lag]) -> None:
    later = any(each.later for each in shown)
    rows = []
    for each in shown:
        cells = (each.partition, each.position, each.end, each.records, f"{each.seconds:.1f}", each.hidden or "-")
        rows.append((*cells, *([each.later or "-"] if later else [])))
    output.print_table((*_COLUMNS, *([_LATER] if later else [])), rows)
    output.report(
        f"{sum(each.records for each in shown)} records behind, {max(each.seconds for each in shown):.1f} s at most"
    )
