"""Where a rehearsal reads: the topics of the running service, or a backup. Both only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from statehold.admin.inspection.topic_view import TopicView
from statehold.api.handler import Handler
from statehold.bound.attributes import schemas, table_types
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.ports import Reader
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.reading import ArchiveReader, place_of
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import Point


class RehearsalSource(Protocol):
    """The stored state of a service, its input, and what it sent."""

    @property
    def partitions(self) -> int: ...

    def reader(self) -> Reader:
        """Return a reader, which the caller closes."""
        ...

    def place(self, partition: int) -> Place: ...

    def point(self, partition: int, text: str) -> Point:
        """Parse a point. :raises UsageError: the text names no point."""
        ...

    def topics(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; 0 for a missing one."""
        ...

    def readable(self, topic: str) -> bool:
        """Return whether the records of an existing output topic can be read."""
        ...


class LiveTopics:
    """The topics in Kafka. The service may be running."""

    def __init__(self, view: TopicView, cancelled: Callable[[], bool] = lambda: False) -> None:
        """`cancelled`: calls of readers end with Cancelled once it returns True."""
        self._view, self._cancelled = view, cancelled
        self.partitions = view.partitions

    def reader(self) -> CommittedReader:
        view = self._view
        return CommittedReader(view.settings, view.names.group, view.admin, self._cancelled, small=True)

    def look_again(self) -> None:
        """Ask the brokers again which topics there are. :raises TopicMissing: one is gone."""
        self._view.look_again()

    def written(self, topic: str, partition: int) -> int:
        """Return the end of the log, open transactions included."""
        return self._view.reader.end(topic, partition)

    def place(self, partition: int) -> Place:
        return self._view.place(partition)

    def point(self, partition: int, text: str) -> Point:
        return self._view.point(partition, text)

    def topics(self, names: Sequence[str]) -> dict[str, int]:
        found = self._view.facts_of(names)
        return {topic: fact.partitions if fact is not None else 0 for topic, fact in found.items()}

    def readable(self, topic: str) -> bool:
        return True


class BackupFiles:
    """A backup with its input. It has no output topics, only the number of their partitions."""

    def __init__(self, directory: Path, names: Names) -> None:
        """:raises UsageError: it is no complete backup of this service, or has no input."""
        self._directory, self._manifest = directory, archive.read_manifest(directory)
        made = self._manifest
        of = Names(made.service, made.input, made.namespace, tuple(made.others))
        if (of.group, of.inputs) != (names.group, names.inputs):
            raise UsageError(
                f"{directory} is a backup of {of.group} with {', '.join(of.inputs)}, the code is {names.group} with "
                f"{', '.join(names.inputs)}. Next: name the backup of this service"
            )
        if not made.with_input:
            raise UsageError(
                f"{directory} has no input records, which the new code would handle. Next: make a backup with "
                f"`statehold snapshot backup MODULE:SERVICE --to DIR --with-input`, or leave out --backup"
            )
        self.partitions = len(made.partitions)

    def reader(self) -> Reader:
        return ArchiveReader(self._directory, self._manifest)

    def place(self, partition: int) -> Place:
        return place_of(self._directory, self._manifest, partition)

    def point(self, partition: int, text: str) -> Point:
        return past.parse(text)

    def topics(self, names: Sequence[str]) -> dict[str, int]:
        """Return the partitions of outputs. Dead letters and retries are in no backup."""
        return {topic: self._manifest.outputs.get(topic, 0) for topic in names}

    def readable(self, topic: str) -> bool:
        return False


def with_tables(place: Place, kind: type[Handler[Any]]) -> Place:
    """Return the place as the new code's takeover sees it, so that its checks compare versions and types."""
    return msgspec.structs.replace(place, schemas=schemas(kind), types=table_types(kind))
