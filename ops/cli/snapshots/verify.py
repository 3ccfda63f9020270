"""`statehold snapshot verify`: verifies everything stored; with --replay the handler, too."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from statehold.admin.inspection.replay_check import replay
from statehold.admin.inspection.replay_diff import Replayed
from statehold.admin.inspection.topic_view import topic_view
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.snapshot.inspect.verify import PartitionVerification


@with_subject
def verify_(
    about: Subject,
    replay_: Annotated[
        bool,
        typer.Option("--replay", help="Replay the input between two full snapshots with the service's handler."),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="POINT", help="Replay from here. [default: the full snapshot before --to]"),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="POINT", help="Replay up to here. [default: the newest full snapshot]")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify snapshots without a commit record, too.")] = False,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Verify everything stored: chunks, checksums, keys, digests, the chain of commit records.

    statehold snapshot verify order_totals.app:service --replay

    It changes nothing; the service may be running.

    Exit code 0: all is correct; 1: a fault was found, named with its topic and offset.
    """
    if replay_ and about.service is None:
        raise WrongOption("--replay needs the service's code: name it as module:service")
    results: list[tuple[PartitionVerification, Replayed | None]] = []
    with topic_view(about.settings, about.names) as view:
        for partition in view.numbers(partitions_of(partitions)):
            found = view.verify(partition, everything=everything)
            # a damaged partition is not replayed
            wanted = about.service if replay_ and found.good else None
            results.append((found, replay(view, wanted.handler, partition, since, until) if wanted else None))
    if as_json:
        output.print_json([_as_json(*each) for each in results])
    else:
        _print(results)
    good = all(verdict.good and (replayed is None or not replayed.differences) for verdict, replayed in results)
    raise typer.Exit(0 if good else 1)


def _as_json(verdict: PartitionVerification, replayed: Replayed | None) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(verdict)
    return document | {"good": verdict.good, "replay": msgspec.to_builtins(replayed) if replayed else None}


def _print(results: list[tuple[PartitionVerification, Replayed | None]]) -> None:
    rows = [
        (
            verdict.partition,
            f"full@{full.offset}",
            full.n if full.n == full.through else f"{full.n}-{full.through}",
            full.chunks,
            full.keys,
            full.maker,
            Text("yes", "green") if full.good else Text("no", "red"),
            f"commit {full.proven_at}" if full.proven_at >= 0 else "-",
        )
        for verdict, _ in results
        for full in verdict.full_snapshots
    ]
    output.print_table(("partition", "full", "n", "chunks", "keys", "maker", "good", "digest equal at"), rows)
    for verdict, replayed in results:
        output.report(
            f"partition {verdict.partition}: {verdict.transactions} transactions to {verdict.n}, position "
            f"{verdict.position}; digest computed and equal at {verdict.compared} commit records: "
            f"{'good' if verdict.good else 'NOT GOOD'}"
        )
        for finding in verdict.findings:
            (output.complain if finding.fault else output.report)(str(finding))
        if replayed is not None:
            _print_replayed(replayed)


def _print_replayed(replayed: Replayed) -> None:
    output.report(
        f"partition {replayed.partition}: replayed {replayed.records} records, positions {replayed.start} to "
        f"{replayed.end}; {replayed.outputs} outputs compared"
        + (f"; {replayed.not_kept} are no longer stored" if replayed.not_kept else "")
        + (": equal" if not replayed.differences else "")
    )
    for each in replayed.differences:
        output.complain(each.text)
