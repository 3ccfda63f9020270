"""A compaction while the service runs: it publishes a full snapshot of each partition, and truncates behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from statehold.bound.handler import new_state
from statehold.errors import StateholdError
from statehold.ports import FullSink, OutOfRange
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import COMPACTION, CommitRecord, Header, Manifest
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.discovery import published
from statehold.snapshot.restore.restore import restore
from statehold.snapshot.restore.truncate import cut
from statehold.state import digest
from statehold.testing.kafka.clients.clients import Clients
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.simulation.process import Application
from statehold.testing.simulation.scheduler import TaskHost, TaskScheduler

#: seconds that it waits for Kafka each time
_PATIENCE = 1.0
#: full snapshots that it keeps
_KEPT = 2


class CompactionLife(TaskHost):
    """One run of a compaction."""

    def __init__(
        self,
        name: str,
        application: Application,
        kafka: SimulatedKafka,
        scheduler: TaskScheduler,
        note: Callable[[str, str], None],
    ) -> None:
        """`note` takes a line of the timeline: who, what."""
        super().__init__(name)
        self._application, self._kafka, self._note = application, kafka, note
        self._names, self._settings = application.names, application.settings
        self._clients = Clients(kafka, name, self._names, self._settings)
        scheduler.spawn(self, "main", self._run)

    def _run(self) -> None:
        for partition in range(self._application.partitions):
            try:
                self._compact(partition)
            except (StateholdError, OutOfRange) as error:  # the next run tries again
                self._note(self.name, f"[{partition}] {type(error).__name__}: {error}")

    def _compact(self, partition: int) -> None:
        application, kafka = self._application, self._kafka
        place = application.place(kafka, partition, self.name)
        reader = self._clients.reader()
        empty = partial(new_state, application.kind, traced=False, track_delta=False)
        found = restore(reader, place, empty, lambda *_: None, kafka.clock, attempts=1)
        # The state may be older than its commit record, if deltas are rare: a compaction folds up to the last delta.
        reached = self._transaction(partition, found.commit_record, digest.to_bytes(found.state.digest))
        if reached is None:
            return
        offset, record = reached
        sink = _MarkedSink(self._clients.full_sink(partition))
        writer = FullWriter(place, found.state, record, offset, -1, sink, self._settings.snapshot.chunk_bytes)
        until = kafka.clock() + 10 * _PATIENCE
        while writer.advance(record.n, -1.0, kafka.clock, _PATIENCE) is None:
            if kafka.clock() > until:
                return
        self._note(self.name, f"[{partition}] publishes n={record.n}")
        self._truncate(partition)

    def _transaction(self, partition: int, last: CommitRecord, restored: bytes) -> tuple[int, CommitRecord] | None:
        """Return the offset of the header, and the commit record, of the transaction with the restored digest."""
        header = -1
        for message in self._kafka.log(self._names.changelog, partition).committed():
            found = records.unpack(message.value() or b"")
            if isinstance(found, Header):
                header = message.offset() or 0
            elif isinstance(found, CommitRecord) and found.n <= last.n and found.digest == restored:
                return header, found
        return None

    def _truncate(self, partition: int) -> None:
        place = self._application.place(self._kafka, partition, self.name)
        found = cut([*published(self._clients.reader(), place, -1)], _KEPT)
        if found is not None:
            admin = self._clients.admin()
            admin.delete_records(self._names.snapshot, partition, found.full)
            admin.delete_records(self._names.changelog, partition, found.increment)


class _MarkedSink:
    """`ports.FullSink` that names the compaction as the maker of its full snapshots."""

    def __init__(self, sink: FullSink) -> None:
        self._sink = sink

    def send(self, payload: bytes) -> None:
        if frame.kind_of(payload) == b"F":
            manifest = records.unpack(payload)
            assert isinstance(manifest, Manifest)
            payload = records.pack(msgspec.structs.replace(manifest, maker=COMPACTION), manifest.format)
        self._sink.send(payload)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)
