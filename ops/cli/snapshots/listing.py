"""`statehold snapshot list`: shows snapshots and commit records, and what a restore would choose."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from rich.text import Text

from statehold.admin.inspection.topic_view import topic_view
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.snapshot.inspect import summaries

_COLUMNS: Final = ("partition", "what", "position", "n", "age", "keys", "bytes", "maker", "proven", "restore")


@with_subject
def list_(
    about: Subject,
    partitions: Partitions = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show snapshots without a commit record, too; reads the whole snapshot topic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show full snapshots and commit records, which ones a restore would use and why, and how long it would take.

    statehold snapshot list order_totals.app:service

    Exit code 0: no obstacle to a restore was found; 1: a partition cannot be restored.
    """
    names = about.names
    with topic_view(about.settings, names) as view:
        numbers = view.numbers(partitions_of(partitions))
        surveys = [summaries.of_survey(*view.survey(each, everything=everything), names.input) for each in numbers]
        hidden = {each: view.hidden_from(names.changelog, each) for each in numbers}
    if as_json:
        output.print_json([each | {"open": hidden[each["partition"]] >= 0} for each in surveys])
    else:
        _print(surveys)
        for partition, offset in hidden.items():
            if offset >= 0:
                output.report(
                    f"partition {partition}: a transaction is open at {names.changelog}@{offset}, as usual while the "
                    f"service runs. If it stays open, see HangingTransaction in the runbook"
                )
    for each in surveys:
        if each["trouble"]:
            output.complain(f"partition {each['partition']}: {each['trouble']}")
    raise typer.Exit(1 if any(each["trouble"] for each in surveys) else 0)


def _print(partitions: list[dict[str, Any]]) -> None:
    rows = [
        [str(each["partition"]), *row]
        for each in partitions
        for row in (_commit_record_row(each), *map(_full_row, each["full_snapshots"]))
    ]
    output.print_table(_COLUMNS, rows)
    for each in partitions:
        if not each["trouble"]:
            restore = each["restore"]
            output.report(
                f"partition {each['partition']}: a restore takes about {restore['seconds']:.1f} s: {restore['why']}"
            )


def _commit_record_row(partition: dict[str, Any]) -> list[str | Text]:
    commit_record = partition["commit_record"]
    if commit_record is None:
        return ["last commit", "-", "-", "-", "-", "-", "-", "-", Text("impossible", "red")]
    from_full = partition["restore"]["from"] is not None
    return [
        "last commit",
        str(commit_record["position"]),
        str(commit_record["n"]),
        brief(commit_record["age"]),
        str(commit_record["keys"]),
        "-",
        commit_record["writer"],
        "-",
        Text("impossible", "red") if partition["trouble"] else Text("" if from_full else "from the beginning"),
    ]


def _full_row(full: dict[str, Any]) -> list[str | Text]:
    what = f"full@{full['offset']}"
    if "id" not in full:
        return [what, "-", "-", "-", "-", "-", "-", Text("no", "red"), Text(full["finding"], "red")]
    return [
        what,
        "-" if full["position"] is None else str(full["position"]),
        str(full["n"]) if full["n"] == full["through"] else f"{full['n']}-{full['through']}",
        brief(full["age"]),
        str(full["keys"]),
        _size(full["bytes"]),
        f"{full['maker']}, shares {full['shared']} of {full['chunks']} chunks" if full["shared"] else full["maker"],
        Text(full["proof"], "green" if full["proven"] else "yellow"),
        Text("starts here", "green") if full["chosen"] else Text(full["finding"], "yellow"),
    ]


def brief(seconds_: float) -> str:
    """Format a duration in the largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds_ >= 2 * length:
            return f"{seconds_ / length:.0f} {unit}"
    return f"{seconds_:.0f} s"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
