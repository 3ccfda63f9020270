"""`statehold snapshot export`: writes the state at a position as Parquet or JSON lines, by Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from statehold.admin.inspection.topic_view import TopicView, topic_view
from statehold.admin.state.position_args import positions_of
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.bound.topics import class_of
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.spark import spark_options
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of

if TYPE_CHECKING:
    from statehold.snapshot.spark.export.point_in_time import PointInTime


@with_subject
def export(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Write to this new directory.")],
    about: Subject,
    at_offset: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET", help="Export the state at this input offset: 1200 for every partition, or 0=1200,1=900."
        ),
    ] = None,
    at_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Export the state at this time, such as 2026-11-21T17:30:00Z.")
    ] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Export the newest state.")] = False,
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="Write parquet or jsonl.")] = "parquet",
    partitions: Partitions = None,
    spark_master: Annotated[
        str, typer.Option(metavar="URL", help="Use this Spark: local[N], or 'submit' for spark-submit's configuration.")
    ] = "local[2]",
    spark_memory: Annotated[str, typer.Option(metavar="SIZE", help="Set the heap of a local Spark.")] = "1g",
    as_json: AsJson = False,
) -> None:
    """Export the state at a position as typed columns, one directory for each table. The service may be running.

    statehold snapshot export order_totals.app:service \\
        --latest --to exports/today

    State exists at commit records with a delta. The position is rounded DOWN to one and printed. The digest must equal
    the worker's before anything is written.

    Exit code 0: written and counted; 1: failed.
    """
    if [at_offset is not None, at_time is not None, latest].count(True) != 1:
        raise WrongOption("choose the state by one of --at-offset OFFSET, --at-time TIME and --latest")
    if form not in ("parquet", "jsonl"):
        raise WrongOption(f"--format {form}: parquet or jsonl")
    options = spark_options("exports need", spark_master, spark_memory)
    from statehold.admin.executor_clients import ReaderFactory
    from statehold.snapshot.spark.export.export import export as run
    from statehold.snapshot.spark.export.export import fresh, plan
    from statehold.snapshot.spark.io.session import spark_session

    tables = list(tables_and_outputs(class_of(about.service.handler))[0].values()) if about.service is not None else []
    with topic_view(about.settings, about.names) as view:
        places = view.places(partitions_of(partitions))
        if about.service is not None:  # an export must not have other values than the service
            types = table_types(class_of(about.service.handler))
            places = [msgspec.structs.replace(place, types=types) for place in places]
        numbers = [place.partition for place in places]
        points = _points(view, numbers, at_offset, at_time)
        fresh(to)
        plan(view.reader, places, points)  # a missing state is reported before a JVM starts
        with spark_session(f"statehold export {about.names.group}", options) as spark:
            reader_of = ReaderFactory(about.settings, about.names)
            done = run(spark, reader_of, view.reader, places, points, tables, to, form)  # type: ignore[arg-type]
    if as_json:
        output.print_json(done)
        return
    output.print_table(
        ("partition", "asked", "position", "transaction", "time", "keys", "digest"),
        [(p.partition, p.asked, p.position, p.n, p.time, p.keys, p.digest[:8]) for p in done.partitions],
    )
    for table, rows in done.rows.items():
        output.report(f"{to / table}: {rows} rows of {', '.join(done.tables[table])}")


def _points(
    view: TopicView, partitions: list[int], at_offset: str | None, at_time: str | None
) -> dict[int, PointInTime]:
    """Return the last moment of each partition; an empty dict for the newest state.

    :raises UsageError: an offset or a time cannot be read, or a partition has none.
    """
    from statehold.snapshot.spark.export import point_in_time

    if at_time is not None:
        changelog = view.names.changelog
        return point_in_time.at_time(view.reader, changelog, partitions, _milliseconds(at_time), at_time)
    if at_offset is None:
        return {}
    return point_in_time.at_position(partitions, positions_of(at_offset), f"--at-offset {at_offset}")


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or text.isdecimal():
        raise WrongOption(f"--at-time {text}: write a time such as 2026-11-21T17:30:00Z, or use --at-offset")
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
