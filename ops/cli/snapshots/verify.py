"""`statehold snapshot verify`: verifies everything stored; with --replay the handler, with --local files on disk."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from statehold.admin.inspection.replay_check import replay
from statehold.admin.inspection.replay_diff import Replayed
from statehold.admin.inspection.topic_view import topic_view
from statehold.errors import UsageError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.snapshot.inspect.verify import PartitionVerification

#: of files that are whole, but not those of the newest state
_UNUSED = "; a start does not use the files, and restores from Kafka"


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
    local: Annotated[
        bool,
        typer.Option("--local", help="Verify the files of tables on disk on this machine, of a stopped service."),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Verify snapshots without a commit record, too.")] = False,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Verify everything stored: chunks, checksums, keys, digests, the chain of commit records.

    statehold snapshot verify order_totals.app:service --replay

    statehold snapshot verify order_totals.app:service --local

    It changes nothing; the service may be running, but not with --local.

    Exit code 0: all is correct; 1: a fault was found, named with its topic and offset.
    """
    if replay_ and about.service is None:
        raise WrongOption("--replay needs the service's code: name it as module:service")
    if local:
        if replay_ or since or until or everything:
            raise WrongOption("--local verifies files alone: leave out --replay, --from, --to and --all")
        raise typer.Exit(_verify_files(about, partitions_of(partitions), as_json=as_json))
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


def _verify_files(about: Subject, partitions: list[int], *, as_json: bool) -> int:
    """Verify the files on this machine; return the exit code.

    :raises UsageError: the service has no tables on disk, or there are no files.
    """
    if about.service is None:
        raise WrongOption("--local needs the service's code: name it as module:service")
    try:
        from statehold.admin.inspection import local_files  # here, because only tables on disk need lmdb
    except ImportError as error:
        raise UsageError(f"tables on disk need lmdb: {error}. Next: `pip install 'statehold[disk]'`") from error
    tables, root = local_files.tables_and_root(about.service.handler, about.settings)
    with topic_view(about.settings, about.names) as view:
        limit = about.settings.state.disk_limit
        results = list(local_files.verify_files(view.reader, view.places(partitions), tables, root, limit))
    if not results:
        raise UsageError(
            f"{root} holds no files of {about.names.service} for these partitions. Nothing was verified; a start "
            f"restores from Kafka. Next: run the command on the service's machine, with its settings (state.dir)"
        )
    if as_json:
        output.print_json([msgspec.to_builtins(each) | {"good": each.good} for each in results])
    else:
        for each in results:
            output.report(
                f"partition {each.partition}: {each.path}: transaction {each.n}, {each.rows} rows, {each.seconds:.1f} "
                f"s; digest {each.digest or 'not computed'}: {'good' if each.good else 'NOT GOOD'}"
            )
            for finding in each.findings:
                say = output.complain if finding.fault else output.report
                say(f"partition {each.partition}: {finding.text}" + ("" if finding.fault else _UNUSED))
    return 0 if all(each.good for each in results) else 1


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
