"""`statehold finish-upgrade`: no older release is to come back."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from statehold.admin.upgrade import PartitionFormat, Upgrade
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import ViaControlTopic


@with_subject
def finish_upgrade(
    about: Subject,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show who wrote each partition, in what.")] = False,
    via_control_topic: ViaControlTopic = False,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Have every partition written in the newest format. Older releases of statehold refuse it from then on.

    statehold finish-upgrade examples.clearing.app:service

    Until then old and new processes run side by side, and you may go back. Refused while an older one is at work.
    Needs the right WRITE on the input: the owners are asked by a command record, which their handlers do not see.

    Exit code 0: every partition is (or --dry-run); 1: refused, or not in time; asking again is harmless.
    """
    upgrade = Upgrade(about.settings, about.names)
    found = upgrade.look() if dry_run else upgrade.finish(timeout, control=via_control_topic)
    if as_json:
        output.print_json([msgspec.to_builtins(each) for each in found])
        return
    for each in found:
        output.tell(_said(each))


def _said(each: PartitionFormat) -> str:
    return f"partition {each.partition}: format {each.format}, transaction {each.transaction} by {each.writer}"
