"""`statehold retry`: retries a failed partition of a running service."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.target import ServiceName, Target, local_name
from statehold.ops.cli.common.waiting import progress
from statehold.ops.remote import local_services
from statehold.ops.remote.local_services import RetryOutcome


def retry(
    partition: Annotated[str, typer.Argument(metavar="PARTITION|all", help="A failed partition, or all of them.")],
    target: Target = None,
    name: ServiceName = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Follow it for this long.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Retry failed partitions: restore the state, and handle the record again that failed.

    statehold retry all --name order-totals

    Without a name it retries the only service of this machine that has failed partitions.

    Exit code 0: all retried ones are live or still restoring; 1: one has failed again, or is not here.
    """
    number = _number(partition)
    service = local_name(target, name) or local_services.that_failed()
    with progress(f"partitions of {service}", wait):
        outcomes = local_services.retry(service, number, wait)
    if as_json:
        output.print_json(outcomes)
    elif not outcomes:
        output.report(f"{service}: no partition has failed")
    else:
        for each in outcomes:
            output.report(f"partition {each.partition}: {_said(each, service)}")
    raise typer.Exit(1 if any(each.phase in ("failed", "gone") for each in outcomes) else 0)


def _number(partition: str) -> int | None:
    if partition == "all":
        return None
    if not partition.isdecimal():
        raise WrongOption(f"{partition!r} is no partition: give a number, or all")
    return int(partition)


def _said(outcome: RetryOutcome, service: str) -> str:
    match outcome.phase:
        case "live":
            return f"live at position {outcome.position}"
        case "failed":
            return f"failed again: {outcome.cause}"
        case "gone":
            return "was assigned to another member of the group, which retries it"
        case phase:
            return f"{phase}; `statehold status --name {service}` shows when it is live"
