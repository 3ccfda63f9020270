"""Finds the service of a read, its tables, and the point of each partition; runs where Spark plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from statehold import service_lookup
from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import TopicView, topic_view
from statehold.admin.state.position_args import milliseconds, positions_of
from statehold.bound.attributes import table_types, tables_and_outputs
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.service import Service
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.spark.export import point_in_time
from statehold.snapshot.spark.export.columns import Columns, Untyped
from statehold.snapshot.spark.export.point_in_time import PointInTime, TimedReader
from statehold.snapshot.spark.io.scan import ReaderOf
from statehold.spark.backup_view import BackupView
from statehold.spark.options import SourceOptions
from statehold.state.partition_table import PartitionTable

#: before changelog offsets, which name transactions exactly
_CHANGELOG: Final = "changelog:"


class StoredPartitions(Protocol):
    """What a read plans with: the service's topics, or a backup."""

    @property
    def reader(self) -> TimedReader: ...

    def places(self, wanted: Sequence[int] | None) -> list[Place]:
        """Return the wanted partitions, or all of them. :raises UsageError: one does not exist."""
        ...


class NamedService:
    """The service that the options name, and its settings. Without its code (only names) tables have no types."""

    def __init__(self, options: SourceOptions) -> None:
        """:raises SettingsError, UsageError, StartError: as commands."""
        self.options, self.settings = options, options.load()
        self.service: Service | None = None
        self.backup = BackupView(Path(options.backup)) if options.backup else None
        if options.service:
            self.service = service_lookup.find(options.service)
            self.service.settings = self.settings
            self.names = self.service.names
        elif options.name or self.backup is None:
            first, *others = options.input.split(",")
            self.names = Names(options.name, first, self.settings.service.namespace, tuple(others))
        else:
            self.names = self.backup.names
        if self.backup is not None:
            self.backup.require(self.names)

    @cached_property
    def tables(self) -> Mapping[str, PartitionTable[Any, Any]]:
        """The tables that the handler declares, and those that statehold adds for it."""
        return tables_and_outputs(class_of(self.service.handler))[0] if self.service is not None else {}

    @contextmanager
    def view(self) -> Iterator[StoredPartitions]:
        """Open the service's topics, or its backup. :raises StartError, TopicMissing, TopicMismatch: as commands."""
        if self.backup is not None:
            yield self.backup
            return
        with self.topics() as view:
            yield view

    @contextmanager
    def topics(self) -> Iterator[TopicView]:
        """Open the service's topics. :raises StartError, TopicMissing, TopicMismatch: as commands."""
        with topic_view(self.settings, self.names) as view:
            yield view

    def places(self, view: StoredPartitions) -> list[Place]:
        """Return the partitions to read, with the types that the code declares, so that other types are an error."""
        types = table_types(class_of(self.service.handler)) if self.service is not None else {}
        found = view.places(self.options.partitions_of())
        return [msgspec.structs.replace(place, types=types) for place in found]

    def points(self, view: StoredPartitions, places: list[Place], text: str, option: str) -> dict[int, PointInTime]:
        """Return the point of each partition; an empty dict for the newest state.

        :raises UsageError: the text is no point, or names none for a partition.
        """
        if text == "latest":
            return {}
        partitions = [place.partition for place in places]
        if text.startswith(_CHANGELOG):
            ends = positions_of(text.removeprefix(_CHANGELOG))
            found = point_in_time.at_position(partitions, ends, f"option {option}={text}")
            return {partition: PointInTime("increment", each.value, text) for partition, each in found.items()}
        if text.isdecimal() or "=" in text:
            return point_in_time.at_position(partitions, positions_of(text), f"option {option}={text}")
        try:
            moment = milliseconds(text, f"option {option}")
        except UsageError as error:
            raise UsageError(
                f"option {option}={text!r}: write latest, an offset such as 1200, one for each partition such as "
                f"0=1200,1=900, or a time such as 2026-11-21T17:30:00Z"
            ) from error
        return point_in_time.at_time(view.reader, self.names.changelog, partitions, moment, text)

    def reader_factory(self) -> ReaderOf:
        """Return what makes the readers of the tasks; it is pickled."""
        if self.backup is not None:
            return self.backup.reader_factory
        return ReaderFactory(self.settings, self.names)


def columns_of(named: NamedService, table: str, recorded: Mapping[str, str]) -> Columns | Untyped:
    """Return the columns of a table; `recorded` are the tables that have keys, as far as commit records name them.

    :raises UsageError: there is no such table; the text names those that exist.
    """
    declared = named.tables.get(table)
    if declared is not None:
        return Columns(declared)
    names = sorted({*named.tables, *recorded})
    if table in recorded or "." in table or (not names and named.service is None):
        return Untyped(table)
    raise UsageError(f"there is no table {table!r} in {named.names.group}; there are {', '.join(names) or 'none'}")
