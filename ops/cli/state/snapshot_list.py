"""`statehold snapshot list`: fulls and marks of each partition, and what a restore would choose."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.reports.topic_access import looking
from statehold.snapshot.format import digest
from statehold.snapshot.format.records import COMPACTION, CommitRecord
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect import forecast
from statehold.snapshot.inspect.survey import Survey, survey
from statehold.snapshot.restore.estimate import Workload


@with_subject
def list_(
    about: Subject,
    partitions: Partitions = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also fulls that no mark refers to; reads the whole full topic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show marks and fulls, what a restore would choose and why, and how long it would take.

    statehold snapshot list examples.clearing.app:service

    Exit code 0: every partition can be restored as far as can be seen; 1: one cannot.
    """
    with looking(about.settings, about.names) as view:
        places = view.places(partitions_of(partitions))
        found = [survey(view.reader, place, everything=everything) for place in places]
        works = [forecast.workload(view.reader, place, each) for place, each in zip(places, found, strict=True)]
        hidden = {place.partition: view.hidden_from(about.names.changelog, place.partition) for place in places}
    if as_json:
        told = [_as_json(each, about.names.input, work) for each, work in zip(found, works, strict=True)]
        output.print_json([each | {"open": hidden[each["partition"]] >= 0} for each in told])
    else:
        _print(found, about.names.input, works)
        for partition, offset in hidden.items():
            if offset >= 0:
                output.tell(
                    f"partition {partition}: a transaction is open at {about.names.changelog}@{offset}: usual while "
                    f"the service runs; see docs/runbook/errors.md#hangingtransaction, when it stays there"
                )
    for each in found:
        if each.trouble:
            output.complain(f"partition {each.partition}: {each.trouble}")
    raise typer.Exit(1 if any(each.trouble for each in found) else 0)


def _as_json(found: Survey, topic: str, work: Workload) -> dict[str, Any]:
    return {
        "partition": found.partition,
        "mark": _mark_json(found.mark, topic),
        "fulls": [_full_json(full, found, topic) for full in found.fulls],
        "increment": {"start": found.increment[0], "end": found.increment[1]},
        "full": {"start": found.full[0], "end": found.full[1]},
        "restore": {
            "from": found.choice.offset if found.choice else None,
            "why": found.why,
            "replaying_far": found.far,
            "seconds": round(forecast.seconds(work, found.mark), 3),
            "work": msgspec.to_builtins(work),
        },
        "trouble": found.trouble,
    }


def _mark_json(mark: CommitRecord | None, topic: str) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {
        "n": mark.n,
        "position": mark.positions[topic],
        "keys": mark.keys,
        "digest": digest.show(mark.digest),
        "last_delta": mark.last_delta,
        "lineage": mark.lineage,
        "writer": mark.writer.instance,
        "version": mark.writer.version,
        "time": mark.time,
        "age": age(mark.time),
    }


def _full_json(full: Full, found: Survey, topic: str) -> dict[str, Any]:
    told: dict[str, Any] = {"offset": full.offset, "referred": full.referred, "finding": full.finding}
    if full.manifest is not None:
        made = full.manifest
        told |= {
            "id": made.full,
            "n": made.first,
            "through": made.through,
            "position": made.positions.get(topic),
            "keys": made.keys,
            "bytes": made.size,
            "chunks": len(made.checksums),
            "maker": made.maker,
            "writer": made.writer.instance,
            "time": made.time,
            "age": age(made.time),
            "proven": proof(full, found.mark) == "yes",
            "proof": proof(full, found.mark),
        }
    return told | {"chosen": full is found.choice}


def proof(full: Full, mark: CommitRecord | None) -> str:
    """Whether somebody has proven it: its writer, whom the last mark trusts, or the compaction before it published."""
    if full.finding or full.manifest is None:
        return "no"
    if full.referred or full.maker == COMPACTION:
        return "yes"
    return "not yet: no mark refers to it" if mark is not None else "no"


def age(milliseconds: int) -> float:
    """Seconds since then, by this machine's clock; the other one may be wrong."""
    return round(max(0.0, time.time() - milliseconds / 1000), 1)


def _print(found: list[Survey], topic: str, works: list[Workload]) -> None:
    table = Table(
        "partition",
        "what",
        "position",
        "n",
        "age",
        "keys",
        "bytes",
        "maker",
        "proven",
        Column("restore", overflow="fold"),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for each in found:
        rows = [_mark_row(each, topic), *(_full_row(full, each, topic) for full in each.fulls)]
        for i, row in enumerate(rows):
            table.add_row(str(each.partition) if i == 0 else "", *row, end_section=i == len(rows) - 1)
    Console(highlight=False).print(table)
    for each, work in zip(found, works, strict=True):
        if not each.trouble:
            seconds = forecast.seconds(work, each.mark)
            output.tell(f"partition {each.partition}: a restore takes about {seconds:.1f} s: {each.why}")


def _mark_row(found: Survey, topic: str) -> list[str | Text]:
    mark = found.mark
    if mark is None:
        return ["last mark", "-", "-", "-", "-", "-", "-", "-", Text("impossible", "red")]
    told = Text("impossible", "red") if found.trouble else Text("" if found.choice else "from the beginning")
    return [
        "last mark",
        str(mark.positions[topic]),
        str(mark.n),
        brief(age(mark.time)),
        str(mark.keys),
        "-",
        Text(mark.writer.instance, overflow="fold"),
        "-",
        told,
    ]


def _full_row(full: Full, found: Survey, topic: str) -> list[str | Text]:
    what = f"full@{full.offset}"
    if full.manifest is None:
        return [what, "-", "-", "-", "-", "-", "-", Text("no", "red"), Text(full.finding, "red")]
    made, proven = full.manifest, proof(full, found.mark)
    told = Text("starts here", "green") if full is found.choice else Text(full.finding, "yellow")
    return [
        what,
        str(made.positions.get(topic, "-")),
        str(made.first) if made.first == made.through else f"{made.first}-{made.through}",
        brief(age(made.time)),
        str(made.keys),
        _size(made.size),
        made.maker,
        Text(proven, "green" if proven == "yes" else "yellow"),
        told,
    ]


def brief(seconds_: float) -> str:
    """How long, in the largest unit that fits."""
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
