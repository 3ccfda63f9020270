"""`statehold drain`: ends a process of this machine after it has handed its partitions over."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import ServiceName, Target, local_name
from statehold.ops.cli.common.waiting import progress
from statehold.ops.remote import drain as draining


def drain(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The instance, as `statehold status` shows it.")],
    target: Target = None,
    name: ServiceName = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait at most this long for its end.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Drain a process on this machine: it commits, leaves its group, so that others take over at once, and ends.

    statehold drain order-totals-2 --name order-totals

    A static member (group.membership) that is only stopped keeps its partitions until its session ends; a drained
    one does not.

    Exit code 0: ended; 1: not in time, or no such process runs here.
    """
    with progress(f"the end of {instance}", wait):
        drained = draining.drain(instance, local_name(target, name), wait)
    if as_json:
        output.print_json(drained)
    for each in drained:
        handed = ", ".join(map(str, each.partitions)) or "none"
        said = "has left the group and ended" if each.ended else f"is still running after {wait:.0f} s"
        if not as_json:
            output.report(f"{each.service} {instance} (pid {each.pid}) {said}; its partitions: {handed}")
    raise typer.Exit(0 if all(each.ended for each in drained) else 1)
