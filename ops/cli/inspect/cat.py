"""`statehold cat TOPIC`: prints records of any topic as JSON lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from statehold.admin.topics import reaching
from statehold.api.record import Message
from statehold.api.values import serde
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.inputs import value_types
from statehold.bound.topics import class_of
from statehold.config.settings import Settings
from statehold.errors import StartError, TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.ops.cli.common import output as show
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.shared_options import with_code
from statehold.ops.cli.common.subject import with_settings
from statehold.ops.cli.common.target import checked_partitions, partitions_of, service_of
from statehold.ops.reports.acl_hint import remember_topic
from statehold.ports import OutOfRange
from statehold.service import Service
from statehold.snapshot.inspect.lines import Lines
from statehold.snapshot.inspect.typed import Typed

_PAUSE = 0.1


def _checked_offset(where: str | None) -> str | None:
    if where not in (None, "beginning", "end") and not where.removeprefix("-").isdecimal():
        raise WrongOption(f"--offset {where}: write beginning, end, an offset, or -N for the last N")
    return where


@with_settings
def cat(
    settings: Settings,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Any topic.")],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:SERVICE",
            help="Decode keys and values with the types of this service.",
            callback=with_code,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="LIST",
            help="Only these partitions, such as 0,3-5. [default: all]",
            callback=checked_partitions,
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            metavar="WHERE",
            help="Begin here: beginning, end, an offset, or -N: the last N offsets. [default: beginning; with -f: end]",
            callback=_checked_offset,
        ),
    ] = None,
    most: Annotated[
        int, typer.Option("--max-records", "-n", min=0, metavar="N", help="Stop after N records. [default: no limit]")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new records until Ctrl-C.")] = False,
    _as_json: AsJson = False,
) -> None:
    """Print the committed records of a topic as JSON lines; `topics check` names the topics of a service.

    statehold cat order-totals.totals order_totals.app:service -n 3

    An unreadable record of a changelog or snapshot topic has kind "damaged".
    """
    found = service_of(settings, target) if target is not None else None
    remember_topic(settings, topic)
    admin = Admin(settings, "statehold-cat")
    with reaching(settings):
        fact = admin.describe([topic])[topic]
    if fact is None:
        raise TopicMissing(f"there is no topic {topic!r}; `statehold topics check MODULE:SERVICE` names a service's")
    wanted = partitions_of(partition) or list(range(fact.partitions))
    if max(wanted) >= fact.partitions:
        raise UsageError(f"{topic} has partitions 0 to {fact.partitions - 1}, not {max(wanted)}")
    reader = CommittedReader(settings, "statehold-cat", admin)
    try:
        if _print(_messages(reader, topic, wanted, offset, follow=follow), _lines(topic, found), most) == 0:
            wait = f"add -f --offset {offset or 'beginning'} to wait for one"
            sys.stderr.write(f"statehold: no committed record of {topic} was found. Next: {wait}\n")
    except BrokenPipeError:  # the reader of the pipe has ended, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        reader.close()


def _lines(topic: str, service: Service | None) -> Lines:
    """Without the service, recognise statehold's topics by their names."""
    if service is None:
        return Lines(topic.endswith((".changelog", ".snapshot")), Typed(), {})
    tables, outputs = tables_and_outputs(class_of(service.handler))
    codecs = {output.topic: serde.for_messages(output.value_type) for output in outputs.values()}
    inputs = value_types(class_of(service.handler), service.names)
    codecs |= {name: serde.for_messages(value) for name, value in inputs.items()}
    return Lines(topic in (service.names.changelog, service.names.snapshot), Typed(tables), codecs)


def _print(messages: Iterator[Message], lines: Lines, most: int) -> int:
    """Return the number of printed records."""
    count = 0
    for count, message in enumerate(messages, 1):
        show.print_json(lines.line(message))
        if count == most:
            break
    sys.stdout.flush()
    return count


def _messages(
    reader: CommittedReader, topic: str, partitions: Sequence[int], offset: str | None, *, follow: bool
) -> Iterator[Message]:
    """Yield the records of each partition up to its end, repeatedly while following."""
    where = offset or ("end" if follow else "beginning")
    positions = {each: _start(reader, topic, each, where) for each in partitions}
    while True:
        came = False
        for each in partitions:
            for message in _new(reader, topic, each, positions):
                came = True
                yield message
        if not follow:
            return
        sys.stdout.flush()
        if not came:
            time.sleep(_PAUSE)


def _new(reader: CommittedReader, topic: str, partition: int, positions: dict[int, int]) -> Iterator[Message]:
    end = reader.bounds(topic, partition)[1]
    try:
        for batch in reader.read(topic, partition, positions[partition], end):
            for message in batch:
                yield message
                positions[partition] = (message.offset() or 0) + 1
    except OutOfRange as error:
        raise StartError(f"truncated while it was read: {error}; begin again with --offset beginning") from error
    positions[partition] = max(positions[partition], end)


def _start(reader: CommittedReader, topic: str, partition: int, where: str) -> int:
    start, end = reader.bounds(topic, partition)
    if where in ("beginning", "end"):
        return start if where == "beginning" else end
    if where.startswith("-") and where[1:].isdecimal():
        return max(start, end - int(where[1:]))
    if not start <= int(where) <= end:
        raise UsageError(f"{topic}[{partition}] holds offsets {start} to {end}, not {where}")
    return int(where)
