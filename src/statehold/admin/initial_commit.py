"""The explicit first start of a service: writes initial commit records and group offsets (rule D5)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.errors import StartError, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer
from statehold.snapshot.initial_record import write_initial_record
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.telemetry.log_events import Log

#: Timeout in seconds to read the end offset of a topic.
_PATIENCE = 30.0


class InitialCommits:
    """Writes the initial commit records. Blocks; raises KafkaTrouble when the cluster fails."""

    def __init__(
        self, settings: Settings, names: Names, admin: Admin, topics: TopicAdmin, log: Log, retries: Sequence[str] = ()
    ) -> None:
        """`retries`: the service's retry topics."""
        self._settings, self._names, self._admin, self._topics, self._log = settings, names, admin, topics, log
        self._side_topics = [names.control, *retries]

    def begin(self, partitions: int, start_at: str) -> None:
        """Write an initial commit record to each empty changelog partition; skip partitions that have one.

        `start_at` is valid (`require_start`). It does not concern the topics of a `Rekey`: a new service begins at
        their ends, because older records are of an earlier one. Once a partition has a commit record, it may have sent
        to the others.

        :raises StartError: the start offset is unknown, or the partition had a state before.
        """
        untouched = [p for p in range(partitions) if not self._has_commit_record(p)]
        inputs, lineage = self._names.inputs, uuid.uuid4().hex[:16]
        own = dict.fromkeys(self._names.rekeys, "end" if len(untouched) == partitions else "beginning")
        found = {p: {topic: self._position(topic, p, own.get(topic, start_at)) for topic in inputs} for p in untouched}
        for partition, positions in found.items():
            self._write(partition, partitions, positions, lineage)
        for topic in (inputs if start_at != "group" else own) if found else ():
            offsets = {partition: positions[topic] for partition, positions in found.items()}
            self._set_offsets(topic, offsets, own.get(topic, start_at))

    def _set_offsets(self, topic: str, offsets: dict[int, int], start_at: str) -> None:
        """Set the group's offsets of an input. :raises StartError: the group refuses them."""
        refused = self._admin.set_committed(topic, offsets)
        if refused:
            to = "--to-earliest" if start_at == "beginning" else "--to-latest"
            to = to if start_at in ("beginning", "end") else f"--to-datetime {_datetime(start_at)}"
            raise StartError(
                f"{topic}: set the offsets of group {self._names.group!r}: {refused}. The initial commit "
                f"records are written. Next: stop the group's members, then run `kafka-consumer-groups "
                f"--bootstrap-server {self._settings.kafka.bootstrap_servers} --group {self._names.group} --topic "
                f"{topic} --reset-offsets {to} --execute`"
            )

    def _has_commit_record(self, partition: int) -> bool:
        with closing(CommittedReader(self._settings, self._names.group, self._admin)) as reader:
            if last_commit_record(reader, self._names.changelog, partition) is not None:
                return True
            start, end = reader.bounds(self._names.changelog, partition)
        if end > 0:
            raise StartError(
                f"{self._names.changelog}[{partition}]@{end}: first start: the partition held records and has no "
                f"commit record now (its start offset is {start}). Nothing was written. Next: delete the topic and run "
                f"`statehold topics create` again, if the state may be lost"
            )
        if self._admin.bounds(self._names.snapshot, partition, _PATIENCE, lambda: False)[1] > 0:
            raise StartError(
                f"{self._names.changelog}[{partition}]: first start: the partition is empty, but "
                f"{self._names.snapshot}[{partition}] holds a state. Nothing was written. Next: run `statehold repair "
                f"rebase MODULE:SERVICE --records replay --why TEXT --dry-run`, which shows how to continue from that "
                f"state; or delete both topics, if the state may be lost"
            )
        return False

    def _position(self, topic: str, partition: int, start_at: str) -> int:
        if start_at == "group":
            committed = self._admin.committed(topic, partition)
            if committed is None:
                raise StartError(
                    f"{topic}[{partition}]: read the offset of group {self._names.group!r}: it is unset. "
                    f"Nothing was written. Next: choose --start-at beginning, --start-at end or a time"
                )
            return committed
        moment = start_at if start_at in ("beginning", "end") else _milliseconds(start_at)
        offset = self._topics.offset(topic, partition, moment)
        return offset if offset >= 0 else self._topics.offset(topic, partition, "end")

    def _write(self, partition: int, partitions: int, inputs: dict[str, int], lineage: str) -> None:
        names = self._names
        producer = KafkaTransactions(self._settings, names, partition, self._log, time.monotonic)
        facts = self._admin.describe([*names.inputs, names.changelog, names.snapshot])
        ids = {topic: fact.id for topic, fact in facts.items() if fact is not None}
        writer = Writer(instance="topics create", version=__version__, reads=frame.NEWEST)
        positions = inputs | _ends(self._admin, self._side_topics, partition)
        place = Place(names, partition, partitions, ids, writer)
        write_initial_record(producer, place, lineage, positions, int(time.time() * 1000))
        producer.commit()
        producer.drop()


def require_start(start_at: str) -> None:
    """:raises UsageError: `start_at` is not valid."""
    if start_at not in ("beginning", "end", "group"):
        _milliseconds(start_at)


def control_position(admin: Admin, names: Names, partition: int) -> int:
    """Return the control topic's end offset, from which the first commit record executes commands; 0 without a topic.

    Earlier commands belong to a former service of the same name.
    """
    return _ends(admin, [names.control], partition).get(names.control, 0)


def _ends(admin: Admin, topics: Sequence[str], partition: int) -> dict[str, int]:
    """Return the end offsets of those topics that exist and hold records."""
    there = [topic for topic, fact in admin.describe(list(topics)).items() if fact and partition < fact.partitions]
    found = {topic: admin.bounds(topic, partition, _PATIENCE, lambda: False)[1] for topic in there}
    return {topic: end for topic, end in found.items() if end > 0}


def _datetime(start_at: str) -> str:
    moment = datetime.fromtimestamp(_milliseconds(start_at) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00")


def _milliseconds(text: str) -> int:
    """:raises UsageError: `text` is neither a number of milliseconds nor an ISO 8601 time."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--start-at {text!r}: use beginning, end, group, milliseconds since 1970 or a time such as "
            f"2026-11-21T08:00:00Z"
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
