"""State maintenance of a stopped service: fences partitions, reads states, writes full snapshots, replaces states."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from statehold.admin.executor_clients import SnapshotSinkFactory
from statehold.api.handler import HandlerFactory
from statehold.api.record import Message
from statehold.bound.attributes import schemas, table_types
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, ToolRefused, TopicMissing, TransactionAborted
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.clients.reader import KafkaReader
from statehold.ports import OutOfRange
from statehold.snapshot import state_replacement
from statehold.snapshot.format import frame, recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, EntryDecoder, FullRef, Writer
from statehold.snapshot.full import FullUnusable, FullWriter, load
from statehold.snapshot.inspect.contents import Contents
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.snapshot.restore.restore import restore
from statehold.snapshot.state_replacement import Adoption, DepartingPartition, ReplacementReason
from statehold.snapshot.store.base import roots_of
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.state.state import State
from statehold.telemetry.log_events import Log
from statehold.worker.handler.engine import Engine

_ACKNOWLEDGE = 120.0
_DEADLINE = 60.0


class LastState(msgspec.Struct, frozen=True):
    """A partition's last commit record and the state at it."""

    commit_record: CommitRecord
    state: State


class StoppedService:
    """Reads and replaces the state of a stopped service, for tools. Single-threaded; every method blocks.

    Every method raises KafkaTrouble when the cluster does not answer.
    """

    def __init__(self, settings: Settings, names: Names, handler: HandlerFactory, tool: str) -> None:
        self.settings, self.names, self._handler = settings, names, handler
        self.kind = class_of(handler)
        self.types = table_types(self.kind)
        self.admin = Admin(settings, names.group)
        self.tool = f"{tool} {__version__}"
        self._log = Log(service=names.group)
        self._fenced: dict[int, KafkaTransactions] = {}

    def facts(self) -> dict[str, TopicFacts]:
        """Return the facts of inputs, changelog and snapshot topic. :raises TopicMissing: the text names the topics."""
        names = self.names
        found = self.admin.describe([*names.inputs, names.changelog, names.snapshot])
        missing = [topic for topic, fact in found.items() if fact is None]
        if missing:
            raise TopicMissing(
                f"{', '.join(missing)}: read the state: the topic does not exist. Next: check the service name "
                f"{names.service!r}"
            )
        return {topic: fact for topic, fact in found.items() if fact is not None}

    def place(self, partition: int, partitions: int, facts: Mapping[str, TopicFacts]) -> Place:
        ids = {topic: fact.id for topic, fact in facts.items()}
        writer = Writer(instance=self.tool, version=__version__, reads=frame.NEWEST)
        return Place(
            self.names, partition, partitions, ids, writer, schemas(self.kind), roots_of(self.settings), self.types
        )

    def new_state(self, partition: int) -> State:
        return self.engine(partition).state

    def engine(self, partition: int) -> Engine:
        """Return an engine with the service's handler and empty tables."""
        return Engine(self._handler, partition, names=self.names)

    def reader(self) -> KafkaReader:
        return KafkaReader(self.settings, self.names.group, self.admin, lambda: False, time.monotonic)

    def fence(self, partitions: Sequence[int]) -> None:
        """Fence these partitions: no older owner can commit afterwards, so a later read is final."""
        for partition in partitions:
            producer = KafkaTransactions(self.settings, self.names, partition, self._log, time.monotonic)
            producer.fence(lambda: False)
            self._fenced[partition] = producer

    def find(self, place: Place) -> LastState:
        """Return the last commit record and the state at it.

        :raises StateRefused: the service could not restore the state either.
        :raises ToolRefused: the topics hold an older state only.
        """
        found, newest = self.newest(place)
        state_replacement.require_current(place, found.commit_record, newest, found.state)
        return found

    def newest(self, place: Place) -> tuple[LastState, int]:
        """Return the newest stored state and its position, which may be older than the last commit record's.

        :raises StateRefused: the service could not restore the state either.
        """
        with closing(self.reader()) as reader:
            found = restore(reader, place, lambda: self.new_state(place.partition), self._note, time.monotonic)
        return LastState(found.commit_record, found.state), found.position

    def commit_record(self, partition: int) -> CommitRecord | None:
        """Return the last commit record without any check."""
        with closing(self.reader()) as reader:
            return last_commit_record(reader, self.names.changelog, partition)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.admin.bounds(topic, partition, _DEADLINE, lambda: False)

    def unread(self, topic: str, partition: int, position: int) -> Iterator[Message]:
        """Yield the records of an input from `position` to its end, without transaction markers.

        :raises HangingTransaction: a producer's transaction is open.
        """
        reader = self.reader()
        try:
            end = self.bounds(topic, partition)[1]
            for batch in reader.read(topic, partition, position, end):
                yield from batch
        except OutOfRange as error:
            raise ToolRefused(
                f"{topic}[{partition}]@{position}: read the next records: {error}. Nothing was changed"
            ) from error
        finally:
            reader.close()

    def adoption(
        self,
        place: Place,
        lineage: str,
        old: CommitRecord | None,
        inputs: Mapping[str, int],
        state: State,
        like: CommitRecord,
        begin: int = 0,
    ) -> Adoption:
        """Write the state as a full snapshot, to which the state-replacement record after `old` refers.

        `begin`: the number of that record without `old`. `inputs`: the next offset of each input. `like`: has the
        versions and types with which the values were written.

        :raises ToolRefused: the snapshot read back differs. :raises TableTypeChanged: this code declares other types.
        """
        types = recorded_types.of_state(like, self.types, state.used, place.input)
        base, _ = self.write_full(place, lineage, begin if old is None else old.n + 1, inputs, state, like)
        return Adoption(
            place=place,
            old=old,
            lineage=lineage,
            base=base,
            digest=state.digest,
            keys=state.keys,
            inputs=inputs,
            begin=begin,
            schemas=like.schemas,
            types=types,
        )

    def write_full(
        self,
        place: Place,
        lineage: str,
        n: int,
        inputs: Mapping[str, int],
        state: State,
        like: CommitRecord,
    ) -> tuple[FullRef | None, CommitRecord]:
        """Write the state as a full snapshot for state-replacement record `n`, read it back and compare it.

        Returns None if the state is empty, and the commit boundary at which `read_full` reads it. The table versions
        are those of `like`.

        :raises ToolRefused: the snapshot read back differs. No commit record refers to it, so it is never restored.
        """
        shown = state_replacement.boundary(place, lineage, n, inputs, state, like, time.time())
        if state.keys == 0:
            return None, shown
        sink = SnapshotSinkFactory(self.settings, self.names).whole(place.partition)
        reader = self.reader()
        try:
            end = reader.bounds(self.names.changelog, place.partition)[1]
            chunk_bytes = self.settings.snapshot.chunk_bytes
            writer = FullWriter(place, state, shown, end, -1, sink, chunk_bytes)
            ref = writer.advance(n, -1.0, time.monotonic, _ACKNOWLEDGE)
            if ref is None:
                raise KafkaTrouble(f"{self.names.snapshot}[{place.partition}]: not written within {_ACKNOWLEDGE:.0f} s")
            self.read_full(reader, place, ref, shown, self.new_state(place.partition))
        except FullUnusable as finding:
            where = f"{self.names.snapshot}[{place.partition}]"
            raise ToolRefused(f"{where}: write the full snapshot: {finding}. The state was not replaced") from finding
        finally:
            sink.close()
            reader.close()
        return ref, shown

    def replace_state(
        self,
        adoptions: Sequence[Adoption],
        membership: Any,
        reason: ReplacementReason,
        leaving: Sequence[DepartingPartition] = (),
    ) -> Mapping[int, CommitRecord]:
        """Replace the states in one transaction, with the producer of the first partition.

        :raises ToolRefused: the brokers rejected the transaction. :raises KafkaTrouble: its outcome is unknown; the
            text says how to find it out.
        """
        producer = self._fenced[min(self._fenced)]
        try:
            return state_replacement.commit(producer, membership, adoptions, reason, time.time(), leaving)
        except TransactionAborted as error:
            producer.abort()  # because an open transaction hides the ends of all partitions from the service
            raise ToolRefused(
                f"{self.names.changelog}: replace the state of {self.names.group!r}: the brokers rejected the "
                f"transaction: {error}. The state was not replaced. Next: make sure that the service is stopped, then "
                f"run the command again"
            ) from error
        except KafkaTrouble as error:
            raise KafkaTrouble(
                f"{self.names.changelog}: replace the state of {self.names.group!r}: the outcome of the transaction is "
                f"unknown: {error}. The state of all partitions was replaced, or of none; state generation "
                f"{adoptions[0].lineage} is the new one. Next: run the command again, it continues from either"
            ) from error

    def close(self) -> None:
        for producer in self._fenced.values():
            producer.drop()

    def read_full(self, reader: KafkaReader, place: Place, ref: FullRef, shown: CommitRecord, state: State) -> None:
        """Fill an empty state with the full snapshot that `write_full` wrote.

        :raises ToolRefused: it has another state, or is gone.
        """
        decoder = EntryDecoder(state.key_types)
        try:
            load(reader, place, ref, shown, state, decoder)
        except FullUnusable as finding:
            where = f"{self.names.snapshot}[{place.partition}]@{ref.offset}"
            raise ToolRefused(
                f"{where}: read back the full snapshot: {finding}. The state was not replaced"
            ) from finding
        state.loaded()
        if digest.to_bytes(state.digest) != shown.digest:
            raise ToolRefused(
                f"{self.names.snapshot}[{place.partition}]@{ref.offset}: read back the full snapshot: its digest is "
                f"{digest.show(state.digest)}, {digest.show(shown.digest)} was written. The state was not replaced"
            )

    def _note(self, event: str, fields: dict[str, object]) -> None:
        self._log.warning(event, **fields)  # type: ignore[arg-type]


def inputs_at(record: CommitRecord, names: Names) -> dict[str, int]:
    """Return the next offset of each input at a commit record that `Place.check` accepts."""
    return {topic: record.positions[topic] for topic in names.inputs}


def load_contents(state: State, contents: Contents, recorded: bytes, where: str) -> State:
    """Fill an empty state with contents that were read without the handler's types. Return the state.

    :raises ToolRefused: the handler does not declare a table, or the digest is not the recorded one.
    """
    for name, held in contents.tables.items():
        if held and name not in state.tables:
            raise ToolRefused(
                f"{where} holds table {name!r}, which the handler does not declare. The state was not replaced"
            )
        if held:
            state.load(Changes(name, list(held), list(held.values())))
    state.loaded()
    if digest.to_bytes(state.digest) != recorded:
        raise ToolRefused(
            f"{where}: load the state: its digest is {digest.show(state.digest)}, the writer recorded "
            f"{digest.show(recorded)}. The state was not replaced"
        )
    return state
