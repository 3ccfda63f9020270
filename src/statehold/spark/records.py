"""The relations of the records of a service: commit records, inputs, outputs, dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark

from statehold.api.record import Message, key_bytes
from statehold.api.values import serde
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.output import origin_of
from statehold.bound.topics import class_of
from statehold.errors import TopicMissing, UsageError
from statehold.messages.dead_letter import FAILED_AGAIN, DeadLetter, Resolution, read
from statehold.ports import Reader
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import typed
from statehold.snapshot.spark.io.scan import ReaderOf
from statehold.spark.change_rows import transactions
from statehold.spark.opening import NamedService
from statehold.spark.pushdown import Pushed
from statehold.spark.relations import BYTES, INT, LONG, SWITCH, TEXT, TIME, ReadTask, Relation, batch_of, column, moment
from statehold.spark.state_rows import BATCH
from statehold.state import digest

_json = msgspec.json.Encoder().encode


#: of a record of an input or output, but for its value
_STORED: Final = (
    column("topic", TEXT, nullable=False),
    column("partition", INT, nullable=False),
    column("offset", LONG, nullable=False),
    column("time", TIME),
    column("key", BYTES),
)


class Stretched(msgspec.Struct, frozen=True):
    """Offsets of one topic partition."""

    topic: str
    start: int
    end: int
    place: Place | None = None


class _Rows(Relation):
    """A relation whose tasks read one topic partition each."""

    def __init__(self, reader_of: ReaderOf, tasks: Sequence[ReadTask]) -> None:
        self._reader_of, self.tasks = reader_of, tasks

    def read(self, task: ReadTask, wanted: spark.StructType, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        some: list[tuple[Any, ...]] = []
        with closing(self._reader_of()) as reader:
            for row in self._rows(reader, task):
                some.append(row)
                if len(some) == BATCH:
                    yield batch_of(some, self.schema, wanted)
                    some = []
        if some:
            yield batch_of(some, self.schema, wanted)

    def _rows(self, reader: Reader, task: ReadTask) -> Iterator[tuple[Any, ...]]:
        raise NotImplementedError


def stretch(reader: Reader, topic: str, partition: int, place: Place | None = None) -> ReadTask:
    """Return the task that reads what a topic partition holds now, without open transactions."""
    return ReadTask(partition, Stretched(topic, *reader.bounds(topic, partition), place))


class CommitRecords(_Rows):
    """Every stored commit record: what a transaction covers, its digest, and the tool that replaced a state."""

    schema = spark.StructType(
        [
            column("partition", INT, nullable=False),
            column("transaction", LONG, nullable=False),
            column("start", LONG),
            column("position", LONG),
            column("positions", spark.MapType(TEXT, LONG)),
            column("time", TIME),
            column("writer", TEXT),
            column("code", TEXT),
            column("keys", LONG),
            column("digest", TEXT),
            column("has_delta", SWITCH),
            column("outputs", LONG),
            column("generation", TEXT),
            column("tool", TEXT),
            column("who", TEXT),
            column("why", TEXT),
            column("offset", LONG),
        ]
    )

    def __init__(self, named: NamedService) -> None:
        with named.view() as view:
            changelog = named.names.changelog
            tasks = [stretch(view.reader, changelog, each.partition, each) for each in named.places(view)]
        tasks = [ReadTask(each.partition, _without_types(each.work)) for each in tasks]
        super().__init__(named.reader_factory(), tasks)

    def _rows(self, reader: Reader, task: ReadTask) -> Iterator[tuple[Any, ...]]:
        work: Stretched = task.work
        assert work.place is not None, "the constructor gives it"
        chain = Chain(work.topic, task.partition, crossing=True)
        for increment, time in transactions(reader, work.place, work.start, work.end, chain):
            yield self._row(work.place, increment, time)

    def _row(self, place: Place, increment: Increment, time: int) -> tuple[Any, ...]:
        made, replacement = increment.commit_record, increment.replacement
        by = (replacement.tool, replacement.who, replacement.why) if replacement else (None, None, None)
        return (
            *(place.partition, made.n, made.start, made.position(place.input), list(made.positions.items())),
            *(moment(time), made.writer.instance, made.writer.code, made.keys, digest.show(made.digest), made.delta),
            *(made.outputs, made.lineage, *by, increment.commit_record_offset),
        )


def _without_types(work: Stretched) -> Stretched:
    assert work.place is not None, "the constructor gives it"
    return msgspec.structs.replace(work, place=msgspec.structs.replace(work.place, types={}, schemas={}))


class StoredInputs(_Rows):
    """Every stored record of the inputs, as its producer wrote it: what an auditor follows a change back to."""

    schema = spark.StructType([*_STORED, column("value", BYTES)])

    def __init__(self, named: NamedService) -> None:
        """:raises UsageError: a backup was made without its inputs."""
        if named.backup is not None:
            named.backup.require_input()
        with named.view() as view:
            tasks = [
                stretch(view.reader, topic, each.partition)
                for each in named.places(view)
                for topic in named.names.inputs
            ]
        super().__init__(named.reader_factory(), tasks)

    def _rows(self, reader: Reader, task: ReadTask) -> Iterator[tuple[Any, ...]]:
        work: Stretched = task.work
        for batch in reader.read(work.topic, task.partition, work.start, work.end):
            for message in batch:
                yield (*_stored(task, message), message.value())


class OutputRecords(_Rows):
    """Every stored output, with the input partition and the transaction that sent it (`output.origin`)."""

    schema = spark.StructType(
        [
            *_STORED,
            column("value", TEXT),
            column("from_partition", INT),
            column("transaction", LONG),
            column("ordinal", LONG),
        ]
    )

    def __init__(self, named: NamedService) -> None:
        """:raises UsageError: only names are given. :raises TopicMissing: a topic of an output is missing."""
        if named.service is None:
            raise UsageError("mode=outputs: the service's code names its outputs: use option service=MODULE:SERVICE")
        outputs = tables_and_outputs(class_of(named.service.handler))[1].values()
        self._types = {output.topic: output.value_type for output in outputs}
        wanted = named.options.partitions_of()
        with named.topics() as view:
            facts = view.facts_of(list(self._types))
            missing = [topic for topic, fact in facts.items() if fact is None]
            if missing:
                raise TopicMissing(f"there is no topic {missing[0]!r}. Next: run `statehold topics create`")
            tasks = [
                stretch(view.reader, topic, partition)
                for topic, fact in facts.items()
                for partition in range(fact.partitions if fact else 0)
                if not wanted or partition in wanted
            ]
        super().__init__(named.reader_factory(), tasks)

    def _rows(self, reader: Reader, task: ReadTask) -> Iterator[tuple[Any, ...]]:
        work: Stretched = task.work
        codec = serde.for_messages(self._types[work.topic])
        for batch in reader.read(work.topic, task.partition, work.start, work.end):
            for message in batch:
                value = _text(typed.message(codec, message.value()))
                yield (*_stored(task, message), value, *_origin(message))


def _stored(task: ReadTask, message: Message) -> tuple[Any, ...]:
    """Return the columns `_STORED` of a record."""
    time = moment(message.timestamp()[1])
    return task.work.topic, task.partition, message.offset(), time, key_bytes(message.key())


def _text(value: Any) -> str | None:
    return None if value is None else _json(value).decode()


def _origin(message: Message) -> tuple[int | None, int | None, int | None]:
    """Return input partition, transaction and ordinal of an output; None without a header that names them."""
    origin = origin_of(message.headers())
    return (origin.partition, origin.n, origin.ordinal) if origin is not None else (None, None, None)


#: what a resolution is called in the column `resolution`
_RESOLVED: Final = {"dlq-replayed": "redriven", "dlq-discarded": "discarded"}


class DeadLetterRecords(_Rows):
    """Every stored dead letter, with its cause and what became of it."""

    schema = spark.StructType(
        [
            column("partition", INT, nullable=False),
            column("offset", LONG, nullable=False),
            column("topic", TEXT),
            column("record_time", TIME),
            column("key", BYTES),
            column("value", BYTES),
            column("why", TEXT),
            column("error", TEXT),
            column("text", TEXT),
            column("attempts", LONG),
            column("resolution", TEXT),
            column("resolved_by", TEXT),
            column("resolved_why", TEXT),
            column("failed_again", LONG),
            column("dead_letter_offset", LONG),
        ]
    )

    def __init__(self, named: NamedService) -> None:
        """:raises TopicMissing: the service has no dead-letter topic."""
        topic, wanted = named.names.dead, named.options.partitions_of()
        with named.topics() as view:
            fact = view.facts_of([topic])[topic]
            if fact is None:
                raise TopicMissing(
                    f"{topic}: list dead letters: the topic does not exist. Next: check that the handler has a failure "
                    f"policy with dead_letter, and run `statehold topics create` if it has"
                )
            numbers = view.numbers(wanted)
            tasks = [stretch(view.reader, topic, partition) for partition in numbers if partition < fact.partitions]
        super().__init__(named.reader_factory(), tasks)

    def _rows(self, reader: Reader, task: ReadTask) -> Iterator[tuple[Any, ...]]:
        """Read twice, because what became of a dead letter follows it."""
        resolved: dict[tuple[int, int], Resolution] = {}
        again: dict[int, int] = {}
        newest: dict[int, int] = {}
        for each in self._found(reader, task):
            if isinstance(each, DeadLetter):
                newest[each.place] = each.at
            elif each.what == FAILED_AGAIN:
                again[each.place] = again.get(each.place, 0) + 1
            else:
                resolved[each.place, newest.get(each.place, -1)] = each
        for each in self._found(reader, task):
            if isinstance(each, DeadLetter):
                yield self._row(each, resolved.get((each.place, each.at)), again.get(each.place, 0))

    def _found(self, reader: Reader, task: ReadTask) -> Iterator[DeadLetter | Resolution]:
        work: Stretched = task.work
        for batch in reader.read(work.topic, task.partition, work.start, work.end):
            yield from (found for found in map(read, batch) if found is not None)

    def _row(self, each: DeadLetter, end: Resolution | None, again: int) -> tuple[Any, ...]:
        outcome = (_RESOLVED.get(end.what, end.what), end.who, end.why) if end else (None, None, None)
        return (
            *(each.partition, each.offset, each.topic, moment(each.timestamp), each.key, each.value, each.why),
            *(each.error, each.text, each.attempts, *outcome, again, each.at),
        )
