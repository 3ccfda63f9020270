"""`statehold rebuild`: runs new code over the kept input and replaces the state (docs/how-to/state/rebuild.md)."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.bound.attributes import sinks_of
from statehold.bound.topics import class_of
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import WrongOption
from statehold.ops.cli.common.spark import SparkMaster, SparkMemory, importing_session
from statehold.ops.cli.release.rehearse import Shown, line_of, print_example
from statehold.ops.cli.state.acting import SHOWN, StateChange, with_change
from statehold.ops.reports.sinks import require_level
from statehold.rebuild import replacing
from statehold.rebuild.kept_transactions import TOOL
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.rebuild.report import RebuiltState
from statehold.rehearsal.source import LiveTopics

if TYPE_CHECKING:
    from statehold.service import Service
    from statehold.snapshot.spark.io.source import Session


@with_change
def rebuild_(
    change: StateChange,
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|POINT",
            help="Begin with no state before the first record, or with the state at a time or another stored point.",
        ),
    ],
    examples: Shown = 3,
    spool_dir: Annotated[
        Path | None,
        typer.Option(
            "--spool-dir",
            metavar="DIR",
            help="Store the states of several partitions here, while one is in memory; not with --spark-master. "
            "[default: TMPDIR]",
        ),
    ] = None,
    spark_master: SparkMaster = None,
    spark_memory: SparkMemory = "1g",
) -> None:
    """Run new code over the kept input, without outputs, and let the service continue from the state that it makes.

    statehold rebuild order_totals.app:service --from beginning --why "ticket 9"

    Without --yes it shows how the rebuilt state differs from that of the service, and changes nothing. With --yes it
    follows the running service, asks you to stop it, reads the rest, and replaces the state of all partitions.

    Exit code 0: replaced, or shown; 1: rejected, and nothing was changed.
    """
    if spark_master is not None and spool_dir is not None:
        raise WrongOption(
            "--spool-dir is for the states of one process; with --spark-master they are on the snapshot topic. Leave "
            "out one of them"
        )
    settings, service, act = change.settings, change.service, change.acts()
    has_sinks = bool(sinks_of(class_of(service.handler)))
    compare_sinks = partial(require_level, settings, "rebuild the state", "the service", service.names)

    def show(found: RebuiltState) -> None:
        if not change.as_json:
            _print(found)

    options = RebuildOptions(since, examples, spool_dir)
    with ExitStack() as opened:
        view = opened.enter_context(topic_view(settings, service.names))
        spark = None
        if spark_master is not None:
            spark = opened.enter_context(importing_session("statehold rebuild", spark_master, spark_memory))
        work = opened.enter_context(closing(_rebuild(spark, LiveTopics(view), service, change.target, options)))
        done = replacing.rebuild(
            work,
            settings,
            service.names,
            service.handler,
            change.reason(TOOL),
            show,
            dry_run=not act,
            compare_sinks=compare_sinks if has_sinks else None,
        )
    if change.as_json:
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
