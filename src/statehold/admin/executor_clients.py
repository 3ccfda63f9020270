"""What Spark's executors read the topics with, and write full snapshots to; each is pickled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.full_producer import KafkaFullSink
from statehold.ports import FullSink
from statehold.snapshot.store.base import folder, root_of
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store.sink import StoreSink

#: bytes that an executor's reader fetches ahead
_AHEAD: Final = 16_000_000


class SnapshotSinkFactory:
    """Makes the sink for the chunks of one partition's full snapshot.

    The sink writes to the snapshot topic, or to the store of `snapshot.full_store`, which the executors must reach.
    """

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names

    def __call__(self, partition: int) -> FullSink:
        root = root_of(self._settings)
        if not root:
            return self._in_topic(partition)
        return StoreSink(open_store(root), root, folder(self._names, partition), _NoManifests())

    def whole(self, partition: int) -> FullSink:
        """Return a sink for chunks and manifest, each where it belongs."""
        root, topic = root_of(self._settings), self._in_topic(partition)
        return StoreSink(open_store(root), root, folder(self._names, partition), topic) if root else topic

    def _in_topic(self, partition: int) -> KafkaFullSink:
        return KafkaFullSink(self._settings, self._names.snapshot, partition)


class ReaderFactory:
    """Makes a reader of the topics that ends at the last stable offset, and reads little ahead."""

    def __init__(self, settings: Settings, names: Names) -> None:
        restore = replace(settings.restore, queue_bytes=min(settings.restore.queue_bytes, _AHEAD))
        self._settings, self._group = replace(settings, restore=restore), names.group

    def __call__(self) -> CommittedReader:
        return CommittedReader(self._settings, self._group, Admin(self._settings, self._group))


class _NoManifests(FullSink):
    """`FullSink` behind a store's on an executor, because the driver writes the manifest."""

    def send(self, payload: bytes) -> None:
        raise AssertionError("a manifest is sent by the driver")

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return []

    def close(self) -> None:
        """Nothing is open."""
