"""Measures how far a group is behind its input: in offsets, and in seconds by the age of the next record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from statehold.admin.topics import reaching, require
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.ports import OutOfRange
from statehold.snapshot.restore.discovery import last_commit_record

_PATIENCE: Final = 10.0


class Lag(msgspec.Struct, frozen=True):
    """One partition; with several inputs the sum of all, and the age of the oldest next record.

    `records` counts offsets up to the last stable one, including transaction markers between records. It is 0 if only
    markers are left, because a consumer has read everything then.
    """

    partition: int
    #: next offset, as the group committed it; None without a commit
    position: int | None
    #: last stable offset
    end: int
    records: int
    #: age of the record at `position`; 0.0 without one
    seconds: float
    #: offsets that an open transaction hides
    hidden: int
    #: records on retry topics that no commit record has passed, due or not
    later: int = 0
    #: with several inputs: `records` of each
    inputs: dict[str, int] = {}


class Lags:
    """Measures repeatedly. Used by one thread; call `close` at the end."""

    def __init__(self, settings: Settings, names: Names) -> None:
        """:raises StartError: the brokers do not answer, or a topic is missing."""
        self._names = names
        self.admin = Admin(settings, names.group)
        self.cluster = ClusterSurvey(settings, self.admin)
        with reaching(settings):
            facts = require(self.admin, names, ())
        self.partitions = facts[names.input].partitions
        # A user at a screen does not wait for a broker as long as a restore does.
        patience = replace(settings.restore, deadline=min(settings.restore.deadline, _PATIENCE))
        self.reader = CommittedReader(replace(settings, restore=patience), names.group, self.admin)
        #: usually empty
        self._retry_topics = list(filter(names.is_for_retries, self.cluster.topic_names()))

    def now(self, wanted: Sequence[int] = ()) -> list[Lag]:
        """Measure each partition. Blocks for one request and, if a partition is behind, one record."""
        committed = {topic: self.cluster.committed(topic, self.partitions) for topic in self._names.inputs}
        found = []
        for partition in wanted or range(self.partitions):
            each = [self._lag(topic, partition, committed[topic].get(partition)) for topic in committed]
            found.append(self._sum(partition, each))
        return found

    def _sum(self, partition: int, inputs: list[Lag]) -> Lag:
        positions = [each.position for each in inputs if each.position is not None]
        return Lag(
            partition,
            sum(positions) if len(positions) == len(inputs) else None,
            sum(each.end for each in inputs),
            sum(each.records for each in inputs),
            max(each.seconds for each in inputs),
            sum(each.hidden for each in inputs),
            self._later(partition),
            dict(zip(self._names.inputs, (each.records for each in inputs), strict=True)) if len(inputs) > 1 else {},
        )

    def _lag(self, topic: str, partition: int, position: int | None) -> Lag:
        start, end, high = self.cluster.ends(topic, partition)
        begin = start if position is None else position
        behind = max(0, end - begin)
        seconds = self._age(topic, partition, max(begin, start), end) if behind else None
        records = behind if seconds is not None else 0
        return Lag(partition, position, end, records, round(seconds or 0.0, 3), high - end)

    def _later(self, partition: int) -> int:
        """Count the records, by reading them, because each is followed by a transaction marker."""
        if not self._retry_topics:
            return 0
        commit_record, count = last_commit_record(self.reader, self._names.changelog, partition), 0
        for topic in self._retry_topics:
            start, end, _ = self.cluster.ends(topic, partition)
            begin = max(start, commit_record.positions.get(topic, start) if commit_record is not None else start)
            count += sum(map(len, self.reader.read(topic, partition, begin, end)))
        return count

    def _age(self, topic: str, partition: int, begin: int, end: int) -> float | None:
        """Return the age of the next record; None if only transaction markers are left, so that none can be read."""
        try:
            for batch in self.reader.read(topic, partition, begin, end, most=1):
                return max(0.0, time.time() - batch[0].timestamp()[1] / 1000)
        except OutOfRange:
            return 0.0
        return None

    def close(self) -> None:
        self.reader.close()
