"""`statehold repair accept-gap | rebase | adopt-offsets | drop-effects | time`: repairs a stopped service."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from statehold.admin.repair import repair as repairing
from statehold.admin.repair.effects import DropEffects
from statehold.admin.repair.positions import AcceptGap, AdoptOffsets, Target
from statehold.admin.repair.rebase import Rebase
from statehold.admin.repair.repair import Repair
from statehold.admin.repair.time import SetTimeBack
from statehold.admin.state.position_args import InputPartition, milliseconds, parsed
from statehold.errors import UsageError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import WrongOption
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.state.acting import SHOWN, StateChange, with_change

app = typer.Typer(help="Repair partitions of a stopped service; records who did it and why.", no_args_is_help=True)


@app.command("accept-gap")
@with_change
def accept_gap(
    change: StateChange,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Continue at beginning, end, an offset, or 0=120,2=90 for some partitions, with several inputs "
            "TOPIC:0=120. [default: the first record that is there]",
        ),
    ] = None,
) -> None:
    """Continue behind records that were deleted from the input before they were handled.

    statehold repair accept-gap order_totals.app:service \\
        --why "ticket 9: retention was 1 h" --dry-run

    Exit code 0: repaired, or shown; 1: rejected, and nothing was changed.
    """
    _run(AcceptGap(_targets(to)), change)


@app.command("adopt-offsets")
@with_change
def adopt_offsets(
    change: StateChange,
    source: Annotated[
        Literal["commit-record", "group"],
        typer.Option(
            "--from", metavar="commit-record|group", help="Choose the position of the commit record or of the group."
        ),
    ],
) -> None:
    """Decide, after a reset of the group's offsets, whether they or the commit records are right.

    statehold repair adopt-offsets order_totals.app:service \\
        --from commit-record --why "ticket 9" --dry-run

    Exit code 0: repaired, or shown; 1: rejected, and nothing was changed.
    """
    _run(AdoptOffsets(source), change)


@app.command("rebase")
@with_change
def rebase(
    change: StateChange,
    records: Annotated[
        Literal["replay", "again"],
        typer.Option(
            metavar="replay|again",
            help="Handle the records after the older state. replay: here, sending nothing; again: in the service, "
            "which sends their outputs a second time.",
        ),
    ],
    partitions: Partitions = None,
    full: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="Continue from this full snapshot of the one named partition.")
    ] = None,
    accept_difference: Annotated[
        bool,
        typer.Option("--accept-difference", help="Continue even if the replay gives another state than the lost one."),
    ] = False,
) -> None:
    """Continue from the newest verifiable state, if that of the last commit record cannot be restored.

    statehold repair rebase order_totals.app:service \\
        --records replay --why "ticket 9" --dry-run

    Without --partitions it repairs those that cannot be restored.

    Exit code 0: repaired, or shown; 1: rejected, and nothing was changed.
    """
    repair = Rebase(records, partitions_of(partitions), full, accept_difference=accept_difference)
    _run(repair, change)


@app.command("drop-effects")
@with_change
def drop_effects(
    change: StateChange,
    function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Drop all pending effects of this function, such as order_totals.app:post; may be repeated. "
            "[default: the effects that this code cannot call]",
        ),
    ] = None,
) -> None:
    """Drop pending effects whose function is gone or takes other arguments, or those of a function.

    statehold repair drop-effects order_totals.app:service \\
        --why "ticket 9: the mail service is gone" --dry-run

    Exit code 0: repaired, or shown; 1: rejected, and nothing was changed.
    """
    _run(DropEffects(function or ()), change)


@app.command("time")
@with_change
def time(
    change: StateChange,
    to: Annotated[
        str,
        typer.Option(metavar="TIME", help="The time to continue at, such as 2026-11-21T17:30:00Z."),
    ],
    partitions: Partitions = None,
) -> None:
    """Set the time of partitions back that a record from the future has advanced.

    statehold repair time order_totals.app:service \\
        --to 2026-11-21T17:30:00Z --why "ticket 9" --dry-run

    Without --partitions it sets back each time that is later. What has closed, fired or expired stays so.

    Exit code 0: repaired, or shown; 1: rejected, and nothing was changed.
    """
    try:
        moment = milliseconds(to, "--to")
    except UsageError as error:
        raise WrongOption(str(error)) from error
    if moment < 0:
        raise WrongOption(f"--to {to}: a time since 1970, such as 2026-11-21T17:30:00Z")
    _run(SetTimeBack(moment, partitions_of(partitions)), change)


def _run(repair: Repair, change: StateChange) -> None:
    act, service = change.acts(), change.service
    done = repairing.run(change.settings, service.names, service.handler, repair, change.reason(repair.name), act=act)
    if change.as_json:
        output.print_json(done)
        return
    rows = []
    for step in done.partitions:
        what = f"{step.finding}; {step.consequence}" if step.finding else "as it is"
        rows.append((step.partition, step.old_position, step.position, step.keys, step.digest[:12], what))
    output.print_table(("partition", "position", "to", "keys", "digest", "what"), rows)
    output.report(f"repaired, state generation {done.lineage}" if act else SHOWN)


def _targets(text: str | None) -> dict[InputPartition, Target] | Target | None:
    """:raises UsageError: it is neither a position nor a list of positions."""
    if text is None or text in ("beginning", "end"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    found: dict[InputPartition, Target] = {}
    for at, place in (parsed(text) or {}).items():
        if not (place in ("beginning", "end") or place.isdecimal()):
            found.clear()
            break
        found[at] = int(place) if place.isdecimal() else place  # type: ignore[assignment]
    if not found:
        raise WrongOption(
            f"--to {text}: beginning, end, an offset such as 120, or a list such as 0=120,2=end, with several inputs "
            f"TOPIC:0=120,OTHER:2=end"
        )
    return found
