"""A stopped service on the bench: its partitions fenced, their states read, new fulls written and proven, adopted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from statehold.admin.snapshot_sinks import SnapshotSinkFactory
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.declared.attributes import schemas
from statehold.errors import KafkaTrouble, ToolRefused, TopicMissing, TransactionAborted
from statehold.handler import Handler
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.clients.reader import KafkaReader
from statehold.ports import OutOfRange
from statehold.record import Message
from statehold.snapshot import state_replacement
from statehold.snapshot.format import digest, frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import EntryDecoder, FullRef, Mark, Writer
from statehold.snapshot.full import FullUnusable, FullWriter, load
from statehold.snapshot.restore.restore import last_mark, restore
from statehold.snapshot.state import State
from statehold.snapshot.state_replacement import Adoption, Leaving, Reason
from statehold.snapshot.store.base import roots_of
from statehold.telemetry.log_events import Log
from statehold.worker.handler.engine import Engine

_ACKNOWLEDGE = 120.0
_DEADLINE = 60.0

HandlerOf = type[Handler[Any]] | Callable[[], Handler[Any]]


class Found(msgspec.Struct, frozen=True):
    """A partition as it was left: its last mark and the state at it."""

    mark: Mark
    state: State


class Bench:
    """For tools; used by one thread. Blocks; raises KafkaTrouble when the cluster does not answer."""

    def __init__(self, settings: Settings, names: Names, handler: HandlerOf, tool: str) -> None:
        self.settings, self.names, self._handler = settings, names, handler
        self.kind = handler if isinstance(handler, type) else type(handler())
        self.admin = Admin(settings, names.group)
        self.tool = f"{tool} {__version__}"
        self._log = Log(service=names.group)
        self._fenced: dict[int, KafkaTransactions] = {}

    def facts(self) -> dict[str, TopicFacts]:
        """:raises TopicMissing: naming the topics."""
        names = self.names
        found = self.admin.describe([names.input, names.changelog, names.snapshot])
        missing = [topic for topic, fact in found.items() if fact is None]
        if missing:
            raise TopicMissing(f"missing: {', '.join(missing)}; is the service called {names.service!r}?")
        return {topic: fact for topic, fact in found.items() if fact is not None}

    def place(self, partition: int, partitions: int, facts: Mapping[str, TopicFacts]) -> Place:
        ids = {topic: fact.id for topic, fact in facts.items()}
        writer = Writer(instance=self.tool, version=__version__, reads=frame.NEWEST)
        return Place(self.names, partition, partitions, ids, writer, schemas(self.kind), roots_of(self.settings))

    def new_state(self, partition: int) -> State:
        return self.engine(partition).state

    def engine(self, partition: int) -> Engine:
        """The service's own handler, with empty tables."""
        return Engine(self._handler, partition, names=self.names)

    def reader(self) -> KafkaReader:
        return KafkaReader(self.settings, self.names.group, self.admin, lambda: False, time.monotonic)

    def fence(self, partitions: Sequence[int]) -> None:
        """From here no older owner of these can commit; what is read after this is the last word."""
        for partition in partitions:
            producer = KafkaTransactions(self.settings, self.names, partition, self._log, time.monotonic)
            producer.fence(lambda: False)
            self._fenced[partition] = producer

    def find(self, place: Place) -> Found:
        """The last mark and the state at it.

        :raises StateRefused: it could not be restored by the service either.
        :raises ToolRefused: the state at the last mark is not kept, but one before it.
        """
        found, newest = self.newest(place)
        self.require_complete(place, found.mark, newest, digest.to_bytes(found.state.digest))
        return found

    def newest(self, place: Place) -> tuple[Found, int]:
        """The newest state that is kept, and its position: older than the last mark's where records must be replayed.

        :raises StateRefused: it could not be restored by the service either.
        """
        reader = self.reader()
        try:
            found = restore(reader, place, lambda: self.new_state(place.partition), self._note, time.monotonic)
        finally:
            reader.close()
        return Found(found.mark, found.state), found.position

    def require_complete(self, place: Place, last: Mark, newest: int, digest_: bytes) -> None:
        """Whether the newest state that is kept, of position `newest`, is that of the last mark.

        :raises ToolRefused: it is not: records, or commands that came beside them, would have to be replayed.
        """
        position = last.positions[place.input]
        if newest != position or digest_ != last.digest:
            raise ToolRefused(
                f"{place.input}[{place.partition}]: the last mark is at {position}, the newest state at {newest}"
                f"{' with another digest' if newest == position else ''}; "
                f"start the service and stop it in good order with snapshot.on_stop, so that a full says what the "
                f"last mark means. Nothing was changed"
            )

    def mark(self, partition: int) -> Mark | None:
        """The last mark, whatever it says."""
        reader = self.reader()
        try:
            return last_mark(reader, self.names.changelog, partition)
        finally:
            reader.close()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.admin.bounds(topic, partition, _DEADLINE, lambda: False)

    def unread(self, partition: int, position: int) -> Iterator[Message]:
        """The records of the input from `position` to its end; markers of transactions are none.

        :raises HangingTransaction: a producer's transaction is open.
        """
        reader = self.reader()
        try:
            end = self.bounds(self.names.input, partition)[1]
            for batch in reader.read(self.names.input, partition, position, end):
                yield from batch
        except OutOfRange as error:
            raise ToolRefused(
                f"{self.names.input}[{partition}]@{position}: the records that come next are gone: {error}. Nothing "
                f"was changed"
            ) from error
        finally:
            reader.close()

    def write(self, place: Place, lineage: str, n: int, position: int, state: State, like: Mark) -> FullRef | None:
        """Write the state as the full that adopt record `n` will name, read it back, compare; None where it is empty.

        The versions of its values are those of `like`.

        :raises ToolRefused: what is on the topic is not what was written. No mark refers to it: it does no harm.
        """
        if state.keys == 0:
            return None
        shown = state_replacement.boundary(place, lineage, n, position, state, like)
        sink = SnapshotSinkFactory(self.settings, self.names).whole(place.partition)
        reader = self.reader()
        try:
            end = reader.bounds(self.names.changelog, place.partition)[1]
            chunk_bytes = self.settings.snapshot.chunk_bytes
            writer = FullWriter(place, state, shown, end, -1, sink, chunk_bytes)
            ref = writer.advance(n, -1.0, time.monotonic, _ACKNOWLEDGE)
            if ref is None:
                raise KafkaTrouble(f"{self.names.snapshot}[{place.partition}]: not written within {_ACKNOWLEDGE:.0f} s")
            self._prove(reader, place, ref, shown)
        finally:
            sink.close()
            reader.close()
        return ref

    def adopt(
        self, adoptions: Sequence[Adoption], membership: Any, reason: Reason, leaving: Sequence[Leaving] = ()
    ) -> Mapping[int, Mark]:
        """All of them in one transaction, by the producer of the first.

        :raises KafkaTrouble: refused or unknown; the text says how to find out.
        """
        producer = self._fenced[min(self._fenced)]
        try:
            return state_replacement.commit(producer, membership, adoptions, reason, time.time(), leaving)
        except TransactionAborted as error:
            producer.abort()  # an open transaction would hide the ends of all partitions from the service
            raise ToolRefused(
                f"the brokers refused the transaction of {self.names.group!r} ({error}): is the service being started? "
                f"Nothing was adopted; stop it and try again"
            ) from error
        except KafkaTrouble as error:
            raise KafkaTrouble(
                f"the adopt transaction of {self.names.group!r} did not end as it should ({error}). All partitions are "
                f"adopted, or none is: the last mark of each tells (lineage {adoptions[0].lineage} is the new one). "
                f"Run the command again; it goes on from whichever holds"
            ) from error

    def close(self) -> None:
        for producer in self._fenced.values():
            producer.drop()

    def _prove(self, reader: KafkaReader, place: Place, ref: FullRef, shown: Mark) -> None:
        state = self.new_state(place.partition)
        decoder = EntryDecoder({name: table.key_type for name, table in state.tables.items()})
        try:
            load(reader, place, ref, shown, state, decoder)
        except FullUnusable as finding:
            where = f"{self.names.snapshot}[{place.partition}]@{ref.offset}"
            raise ToolRefused(f"{where} cannot be read back: {finding}. Nothing was adopted") from finding
        state.loaded()
        if digest.to_bytes(state.digest) != shown.digest:
            raise ToolRefused(
                f"{self.names.snapshot}[{place.partition}]@{ref.offset}: digest {digest.show(state.digest)} is read "
                f"back, {digest.show(shown.digest)} was written. Nothing was adopted"
            )

    def _note(self, event: str, fields: dict[str, object]) -> None:
        self._log.warning(event, **fields)  # type: ignore[arg-type]
