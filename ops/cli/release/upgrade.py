"""`statehold finish-upgrade`: switches all partitions to the newest format."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.admin.upgrade import PartitionFormat, Upgrade
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import ViaControlTopic
from statehold.ops.cli.common.waiting import progress


@with_subject
def finish_upgrade(
    about: Subject,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the writer and format of each partition.")
    ] = False,
    via_control_topic: ViaControlTopic = False,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait at most this long.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """End a rolling upgrade: write every partition in the newest format, which older releases reject.

    statehold finish-upgrade order_totals.app:service

    Until then old and new processes run side by side, and you may go back. It is rejected while an older one runs.
    It needs the access right WRITE on the input: it sends the owners a command record, which handlers do not see.

    Exit code 0: every partition is (or --dry-run); 1: rejected, or not in time; you may repeat it.
    """
    upgrade = Upgrade(about.settings, about.names)
    with progress("the partitions' answers", timeout):
        found = upgrade.look() if dry_run else upgrade.finish(timeout, control=via_control_topic)
    if as_json:
        output.print_json(found)
        return
    for each in found:
        output.report(_said(each))


def _said(each: PartitionFormat) -> str:
    return f"partition {each.partition}: format {each.format}, transaction {each.transaction} by {each.writer}"
