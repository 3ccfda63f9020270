"""`statehold restart` and `statehold scale`: change the processes of `statehold run --processes`."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import ServiceName, Target, local_name
from statehold.ops.cli.common.waiting import progress
from statehold.ops.remote import processes as supervised
from statehold.ops.remote.processes import ProcessesChanged

Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Follow it for at most this long.")]


def restart(target: Target = None, name: ServiceName = None, wait: Wait = 3600.0, as_json: AsJson = False) -> None:
    """Restart the processes of a service one after the other, with new code and settings.

    statehold restart --name order-totals

    Each process is drained, and live again, before the next one stops. A release that cannot be loaded, ends, or fails
    a partition stops the restart, and the other processes keep running. For a service of `statehold run --processes`.

    Exit code 0: all run the new code; 1: stopped, or not in time; standard error names the cause.
    """
    with progress("the rolling restart", wait):
        changed = supervised.restart(local_name(target, name), wait)
    _report(changed, "runs the new code", "the rolling restart stopped", as_json=as_json)


def scale(
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="The number of processes.")],
    target: Target = None,
    name: ServiceName = None,
    wait: Wait = 600.0,
    as_json: AsJson = False,
) -> None:
    """Change the number of processes of a running service.

    statehold scale 4 --name order-totals

    The group moves only the partitions that it has to move. The number lasts until the supervisor ends. For a service
    of `statehold run --processes`.

    Exit code 0: that number is live; 1: not in time, or one stays down.
    """
    with progress(f"{number} processes", wait):
        changed = supervised.scale(local_name(target, name), number, wait)
    _report(changed, "is live", "not complete", as_json=as_json)


def _report(changed: ProcessesChanged, good: str, bad: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(changed)
    else:
        for each in changed.processes:
            state = good if each.state == "live" and changed.good else f"is {each.state}"
            why = f": {each.why}" if each.why else ""
            output.report(f"{changed.service}: process {each.process} (pid {each.pid or 'none'}) {state}{why}")
    if not changed.good:
        output.complain(f"{changed.service}: {bad}: {changed.why or 'not in time'}")
    raise typer.Exit(0 if changed.good else 1)
