"""`statehold rehearse`: runs new code from a stored state over the records after it, and compares."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.common.exit_codes import Answer
from statehold.config.common.units import parse_duration
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.spark import SparkMaster, SparkMemory, importing_session
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.rehearsal.rehearse import RehearsalLimits, rehearse
from statehold.rehearsal.report import Compared, DifferenceExample, RehearsedPartition, Verdict, verdict_of
from statehold.rehearsal.saved_results import EarlierResults, ResultFiles, ResultsWriter
from statehold.rehearsal.source import BackupFiles, LiveTopics, RehearsalSource
from statehold.service import Service

_CODES: Final[dict[Verdict, Answer]] = {
    "equal": Answer.YES,
    "different": Answer.DIFFERENT,
    "unreadable": Answer.UNREADABLE,
}
_SAID: Final[dict[Verdict, str]] = {
    "equal": "EQUAL: the new code reads the state, and does the same as the running service",
    "different": "DIFFERENT: the new code does something else than the running service. Nothing was changed",
    "unreadable": (
        "UNREADABLE: the new code cannot take over the stored state. Nothing was changed. Next: change it as "
        "the errors say, or run the code that wrote the state"
    ),
}
Ignored = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="FIELD",
        help="Leave out a field of outputs and values, such as timestamp or totals:address.zip; may be repeated.",
    ),
]
Shown = Annotated[int, typer.Option("--show", metavar="N", min=0, help="Show N differences of each topic and table.")]
#: characters of a value in the report
_WIDTH: Final = 300


@with_subject
def rehearse_(
    about: Subject,
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POINT",
            help="Begin with the state at this point. [default: the newest full snapshot that enough records follow]",
        ),
    ] = "",
    records: Annotated[
        int, typer.Option("--records", metavar="N", min=0, help="End after N records of each partition. [default: all]")
    ] = 0,
    time_: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="End after this time, such as 5m, shared by the partitions."),
    ] = None,
    ignore: Ignored = None,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", metavar="DIR", help="Read this backup, made with --with-input, instead of Kafka."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write sink rows, time and memory to this new file."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Compare with the file that --save of the old code wrote."),
    ] = None,
    examples: Shown = 3,
    partitions: Partitions = None,
    spark_master: SparkMaster = None,
    spark_memory: SparkMemory = "1g",
    as_json: AsJson = False,
) -> None:
    """Rehearse a release: run the new code over records that the service has handled, and compare.

    statehold rehearse order_totals.app:service --records 100000

    It reads the state at a point, decodes every key and value with the code named here, and hands its handler the
    records after the point. Then it compares outputs, tables, timers, dead letters and side effects with what the
    service committed. It writes nothing to Kafka and joins no group; the service may be running.

    Exit code 0: equal; 4: results differ; 5: the code cannot take over the stored state; 1: it could not be rehearsed.
    """
    if about.service is None:
        raise WrongOption("a rehearsal needs the new code: name it as module:service")
    limits = RehearsalLimits(since, records, seconds_of("--time", time_), tuple(ignore or ()), examples)
    wanted = partitions_of(partitions)
    if spark_master is None:
        found = _rehearsed(about, about.service, limits, wanted, backup, save, against, show=not as_json)
    elif save is not None or against is not None:
        raise WrongOption("--save and --against are files of one process; leave out --spark-master")
    else:
        found = _on_spark(about, limits, wanted, backup, spark_master, spark_memory)
        for each in () if as_json else found:
            print_partition(each)
    verdict = verdict_of(found)
    if as_json:
        output.print_json({"verdict": verdict, "partitions": [msgspec.to_builtins(each) for each in found]})
    else:
        output.report(_SAID[verdict])
    raise typer.Exit(_CODES[verdict])


def _rehearsed(
    about: Subject,
    service: Service,
    limits: RehearsalLimits,
    partitions: list[int],
    backup: Path | None,
    save: Path | None,
    against: Path | None,
    *,
    show: bool,
) -> list[RehearsedPartition]:
    """Rehearse one partition after the other. `show`: print each report."""
    found: list[RehearsedPartition] = []
    with _source(about, backup) as (source, numbers), _saving(save) as writer:
        files = ResultFiles(writer, EarlierResults(against) if against is not None else None)
        wanted, end = numbers(partitions), time.monotonic() + limits.seconds
        for i, partition in enumerate(wanted):
            share = max(0.001, (end - time.monotonic()) / (len(wanted) - i)) if limits.seconds else 0.0
            each = msgspec.structs.replace(limits, seconds=share)
            found.append(rehearse(source, service.handler, partition, each, about.settings, files))
            if show:
                print_partition(found[-1])
    return found


def _on_spark(
    about: Subject, limits: RehearsalLimits, partitions: list[int], backup: Path | None, master: str, memory: str
) -> list[RehearsedPartition]:
    """Rehearse each partition on an executor."""
    directory = backup.resolve() if backup is not None else None
    with _source(about, directory) as (_, numbers):  # a wrong option is reported before a JVM starts
        wanted = numbers(partitions)
    with importing_session("statehold rehearse", master, memory) as spark:
        from statehold.spread import rehearse as spread
        from statehold.spread.partitions import ReleaseCode

        code = ReleaseCode(about.target, about.settings, about.names)
        return spread.rehearse(spark, code, wanted, limits, directory)


@contextmanager
def _source(about: Subject, backup: Path | None) -> Iterator[tuple[RehearsalSource, Any]]:
    if backup is not None:
        files = BackupFiles(backup, about.names)
        yield files, lambda wanted: _existing(wanted, files.partitions)
        return
    with topic_view(about.settings, about.names) as view:
        yield LiveTopics(view), view.numbers


@contextmanager
def _saving(path: Path | None) -> Iterator[ResultsWriter | None]:
    """Open the file of --save. :raises WrongOption: it exists, or cannot be written."""
    if path is None:
        yield None
        return
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except OSError as error:
        raise WrongOption(f"--save {path}: {error.strerror}. Next: name a new file") from error
    with file:
        yield ResultsWriter(file)


def _existing(wanted: list[int], partitions: int) -> list[int]:
    for each in wanted:
        if each >= partitions:
            raise WrongOption(f"--partitions: the backup has partitions 0 to {partitions - 1}, not {each}")
    return wanted or list(range(partitions))


def seconds_of(option: str, text: str | None) -> float:
    """Return a duration in seconds, 0 without one. :raises WrongOption: it cannot be read."""
    if text is None:
        return 0.0
    try:
        return parse_duration(text)
    except ValueError as error:
        raise WrongOption(f"{option} {text}: write {error}") from None


def print_partition(found: RehearsedPartition, *, examples: bool = True) -> None:
    """Print the report about one partition."""
    where = f"partition {found.partition}"
    if found.from_n >= 0:
        where += f": from transaction {found.from_n} (position {found.start}) to {found.to_n} (position {found.end})"
    output.report(f"{where}: {found.keys} keys read, {found.records} records handled")
    for text in found.unreadable:
        output.complain(f"partition {found.partition}: {text}")
    for each in found.compared:
        output.report(f"  {line_of(each)}")
    for field, count in found.ignored.items():
        output.report(f"  --ignore {field}: {count} otherwise equal")
    for text in found.notes:
        output.report(f"  {text}")
    if found.records:
        each_record = found.handler_seconds / found.records * 1e6
        output.report(
            f"  {each_record:.1f} microseconds per record in the handler, {found.memory / 1e6:.0f} MB of memory, "
            f"{found.seconds:.1f} s"
        )
    if found.records and found.old_handler_seconds:
        output.report(
            f"  the old code: {found.old_handler_seconds / found.records * 1e6:.1f} microseconds per record, "
            f"{found.old_memory / 1e6:.0f} MB of memory"
        )
    for example in found.examples if examples else ():
        print_example(example)


def line_of(each: Compared) -> str:
    """Return what a comparison has counted."""
    name = each.kind if each.name == each.kind else f"{each.kind} {each.name}"
    parts = [f"{each.compared} compared"] if each.compared else []
    counts = ((each.changed, "changed"), (each.missing, "missing"), (each.added, "added"))
    parts += [f"{count} {how}" for count, how in counts if count]
    parts += [f"{each.passing} differed for a time"] if each.passing else []
    parts += [f"{each.not_compared} not compared"] if each.not_compared else []
    parts += [] if each.differ or each.passing or not each.compared else ["equal"]
    fields = ", ".join(f"{field} {count}" for field, count in sorted(each.fields.items(), key=lambda item: -item[1]))
    return f"{name}: {', '.join(parts)}" + (f": {fields}" if fields else "")


def print_example(example: DifferenceExample) -> None:
    """Print one difference, both sides below each other."""
    of = example.name if example.name != example.kind else example.kind
    key = "" if example.key is None else f", key {output.compact(example.key)}"
    fields = f": {', '.join(example.fields)}" if example.fields else ""
    output.report(f"{example.record or 'stored'}: {of}{key}: {example.how}{fields}")
    for side, value in (("live", example.live), ("new ", example.new)):
        absent = value is None and example.how != "changed"
        output.report(f"  {side} {'-' if absent else output.compact(value)[:_WIDTH]}")
