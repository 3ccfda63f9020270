"""`statehold rebuild`: runs new code over the kept input and replaces the state (docs/how-to/state/rebuild.md)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.bound.attributes import sinks_of
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.spark import SparkMaster, SparkMemory, importing_session
from statehold.ops.cli.common.subject import with_settings
from statehold.ops.cli.common.target import Code, Who, Why, replacement_reason, service_of
from statehold.ops.cli.release.rehearse import Shown, line_of, print_example
from statehold.ops.cli.state.acting import SHOWN, DryRun, Yes, acts
from statehold.ops.reports.sinks import compared
from statehold.rebuild import replacing
from statehold.rebuild.kept_transactions import TOOL
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.rebuild.report import RebuiltState
from statehold.rehearsal.source import LiveTopics
from statehold.snapshot.format.records import CommitRecord

if TYPE_CHECKING:
    from statehold.service import Service
    from statehold.snapshot.spark.io.source import Session


@with_settings
def rebuild_(
    settings: Settings,
    target: Code,
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|POINT",
            help="Begin with no state before the first record, or with the state at a time or another stored point.",
        ),
    ],
    why: Why,
    examples: Shown = 3,
    spool_dir: Annotated[
        Path | None,
        typer.Option(
            "--spool-dir",
            metavar="DIR",
            help="Store the states of several partitions here, while one is in memory. [default: TMPDIR]",
        ),
    ] = None,
    spark_master: SparkMaster = None,
    spark_memory: SparkMemory = "1g",
    who: Who = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run new code over the kept input, without outputs, and let the service continue from the state that it makes.

    statehold rebuild order_totals.app:service --from beginning --why "ticket 9"

    Without --yes it shows how the rebuilt state differs from that of the service, and changes nothing. With --yes it
    follows the running service, asks you to stop it, reads the rest, and replaces the state of all partitions.

    Exit code 0: replaced, or shown; 1: rejected, and nothing was changed.
    """
    service = service_of(settings, target)
    reason, act = replacement_reason(TOOL, who, why), acts(settings, service.names, dry_run=dry_run, yes=yes)
    has_sinks = bool(sinks_of(class_of(service.handler)))

    def show(found: RebuiltState) -> None:
        if not as_json:
            _print(found)

    options = RebuildOptions(since, examples, spool_dir)
    with ExitStack() as opened:
        view = opened.enter_context(topic_view(settings, service.names))
        spark = None
        if spark_master is not None:
            spark = opened.enter_context(importing_session("statehold rebuild", spark_master, spark_memory))
        work = opened.enter_context(closing(_rebuild(spark, LiveTopics(view), service, target, options)))
        done = replacing.rebuild(
            work,
            settings,
            service.names,
            service.handler,
            reason,
            show,
            dry_run=not act,
            compare_sinks=_sinks_compared(settings, service.names) if has_sinks else None,
        )
    if as_json:
        output.print_json(done)
        return
    for text in done.obstacles:
        output.complain(f"--yes would reject this: {text}")
    output.report(f"changed, state generation {done.lineage}" if act else SHOWN)


def _rebuild(
    spark: Session | None, topics: LiveTopics, service: Service, target: str, options: RebuildOptions
) -> Rebuild:
    if spark is None:
        return Rebuild(topics, service.handler, options, service.settings, output.complain)
    from statehold.spread.partitions import ReleaseCode
    from statehold.spread.rebuild import SpreadRebuild

    code = ReleaseCode(target, service.settings, service.names)
    return SpreadRebuild(spark, topics, service.handler, code, options, output.complain)


def _sinks_compared(settings: Settings, names: Names) -> replacing.CompareSinks:
    def compare(commit_records: Sequence[CommitRecord]) -> None:
        for each in compared(settings, names, commit_records):
            if each.trouble or each.position != each.commit_record:
                raise ToolRefused(
                    f"{names.input}[{each.partition}]@{each.commit_record}: rebuild the state: the database of the "
                    f"sinks is at {each.position}: {each.trouble or 'ahead, by one transaction'}. Nothing was changed. "
                    f"Next: start the service, which repeats that transaction, and stop it"
                )

    return compare


def _print(found: RebuiltState) -> None:
    rate = f", {found.records / found.seconds:.0f} per second" if found.seconds else ""
    output.report(
        f"partition {found.partition}: from position {found.start} to {found.end} (transaction {found.to_n}): "
        f"{found.records} records handled{rate}, {found.keys} keys"
    )
    output.report(f"  digest {found.old_digest} of the service, {found.digest} rebuilt")
    if 0 <= found.compared_with != found.compared_at:
        output.report(
            f"  compared at transaction {found.compared_at} with the service's state of transaction "
            f"{found.compared_with}, the newest one that is stored"
        )
    for each in found.compared:
        output.report(f"  {line_of(each)}")
    for text in found.notes:
        output.report(f"  {text}")
    for example in found.examples:
        print_example(example)
