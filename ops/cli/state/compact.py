"""`statehold compact`: folds full snapshots and deltas into new full snapshots, by Spark, while the service runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from statehold.common.exit_codes import Answer
from statehold.errors import CompactionBusy
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.spark import spark_options
from statehold.ops.cli.common.steps import Steps
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.process.job_metrics import JobMetrics, PartitionFigures

if TYPE_CHECKING:
    from statehold.admin.compaction_publish import CompactionResult


@with_subject
def compact(
    about: Subject,
    partitions: Partitions = None,
    spark_master: Annotated[
        str,
        typer.Option(
            "--spark-master",
            metavar="URL",
            help="Use this Spark: local[N], spark://HOST:PORT, ..., or 'submit' for spark-submit's configuration.",
        ),
    ] = "local[2]",
    spark_memory: Annotated[
        str, typer.Option("--spark-memory", metavar="SIZE", help="Set the heap of a local Spark.")
    ] = "1g",
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help="Keep N full snapshots. [default: snapshot.keep]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compute and verify the snapshots; write and delete nothing.")
    ] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-file", metavar="FILE.prom", help="Write metrics for node_exporter's textfile collector."
        ),
    ] = None,
    pushgateway: Annotated[
        str | None, typer.Option("--pushgateway", metavar="URL", help="Push the metrics there, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new full snapshot of each partition with Spark, verify it, and delete what no kept snapshot needs.

    statehold compact order_totals.app:service \\
        -c order-totals.toml

    Workers continue. The digest of Spark's result must equal the one in the worker's commit record of that transaction;
    otherwise that partition's snapshot is not published. You may interrupt and repeat it at any time.

    Exit code 0: every partition is verified; 1: one is not; 3: another run is active.
    """
    names = about.names
    chosen = partitions_of(partitions)
    options = spark_options("compaction needs", spark_master, spark_memory, brief=True)
    from statehold.admin.compaction import Compaction
    from statehold.snapshot.spark.io.session import Tasks, spark_session

    steps = Steps(Console(stderr=True, highlight=False))
    run = Compaction(about.settings, names, keep=keep, dry_run=dry_run, report=steps.report)
    figures = JobMetrics(names.group, metrics_file, pushgateway)
    try:
        run.require_reachable()
        steps.report("starting Spark")
        with steps, spark_session(f"statehold compact {names.group}", options) as spark:
            steps.watch(Tasks(spark))
            try:
                outcomes = run.run(spark, chosen)
            finally:
                steps.watch(None)
    except CompactionBusy as error:
        output.complain(str(error))
        raise typer.Exit(Answer.NOTHING_RUNS) from error
    except Exception:
        figures.failed()
        raise
    figures.ended([_figures(outcome) for outcome in outcomes], ok=all(outcome.good for outcome in outcomes))
    _show(outcomes, as_json, dry_run)


def _figures(outcome: CompactionResult) -> PartitionFigures:
    return PartitionFigures(
        outcome.partition,
        outcome.keys or 0,
        outcome.bytes_before or 0,
        outcome.bytes_after or 0,
        outcome.seconds,
        outcome.proven,
    )


_COLUMNS: Final = ("partition", "result", "transaction", "keys", "before", "after", "seconds", "digest")
_COLOURS: Final = {"failed": "red", "compacted": "green", "proven": "green"}


def _show(outcomes: Sequence[CompactionResult], as_json: bool, dry_run: bool) -> None:
    if as_json:
        output.print_json(outcomes)
    else:
        output.print_table(_COLUMNS, map(_row, outcomes))
    failed = [outcome for outcome in outcomes if not outcome.good]
    for outcome in failed:
        output.complain(f"partition {outcome.partition}: {outcome.cause}")
    if dry_run and not as_json:
        output.report("dry run: nothing was written or deleted")
    if failed:
        raise typer.Exit(1)


def _row(each: CompactionResult) -> tuple[object, ...]:
    status = Text(each.status, _COLOURS.get(each.status, ""))
    sizes = (_number(each.transaction), _number(each.keys), _bytes(each.bytes_before), _bytes(each.bytes_after))
    return (each.partition, status, *sizes, f"{each.seconds:.1f}", Text("ok", "green") if each.proven else "-")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bytes(value: Any) -> str:
    if value is None:
        return "-"
    size, unit = float(value), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
