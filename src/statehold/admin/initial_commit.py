"""The first start of a service as an act: genesis marks, and where the group begins (rule D5)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.errors import StartError, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.committed_reader import StableReader
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.snapshot.format import digest, frame, records
from statehold.snapshot.format.records import Header, Mark, Writer
from statehold.snapshot.restore.last_commit_record import last_mark
from statehold.telemetry.log_events import Log

#: seconds for the end of a topic
_PATIENCE = 30.0


class Genesis:
    """Blocks; raises KafkaTrouble when the cluster fails on the way."""

    def __init__(
        self, settings: Settings, names: Names, admin: Admin, topics: TopicAdmin, log: Log, retries: Sequence[str] = ()
    ) -> None:
        """`retries`: the service's retry topics."""
        self._settings, self._names, self._admin, self._topics, self._log = settings, names, admin, topics, log
        self._beside = [names.control, *retries]

    def begin(self, partitions: int, start_at: str) -> None:
        """Write a genesis mark where the increment topic is untouched; partitions with a mark are left alone."""
        untouched = [p for p in range(partitions) if not self._has_mark(p)]
        positions = {partition: self._position(partition, start_at) for partition in untouched}
        lineage = uuid.uuid4().hex[:16]
        for partition, position in positions.items():
            self._write(partition, partitions, position, lineage)
        if not positions or start_at == "group":
            return
        refused = self._admin.set_committed(self._names.input, positions)
        if refused:
            raise StartError(
                f"the genesis marks are written, but the group {self._names.group!r} keeps its offsets: {refused}. "
                f"Stop its members, then: kafka-consumer-groups --group {self._names.group} --reset-offsets ... "
                f"--execute"
            )

    def _has_mark(self, partition: int) -> bool:
        reader = StableReader(self._settings, self._names.group, self._admin)
        try:
            if last_mark(reader, self._names.changelog, partition) is not None:
                return True
            start, end = reader.bounds(self._names.changelog, partition)
        finally:
            reader.close()
        if end > 0:
            raise StartError(
                f"{self._names.changelog}[{partition}] holds no mark but ends at offset {end} (start {start}): marks "
                f"were there and are gone, so this is no first start. To begin anew, delete and re-create the topic"
            )
        if self._admin.bounds(self._names.snapshot, partition, _PATIENCE, lambda: False)[1] > 0:
            raise StartError(
                f"{self._names.changelog}[{partition}] is empty, but {self._names.snapshot}[{partition}] is not: there "
                f"was a state, so this is no first start, and no mark was written. `statehold repair rebase "
                f"MODULE:SERVICE --records replay --why ... --dry-run` shows how to go on from it. To begin anew, "
                f"delete both topics"
            )
        return False

    def _position(self, partition: int, start_at: str) -> int:
        if start_at == "group":
            committed = self._admin.committed(self._names.input, partition)
            if committed is None:
                raise StartError(
                    f"group {self._names.group!r} has no offset for {self._names.input}[{partition}]; nothing was "
                    f"written. Choose --start-at beginning, end or a time"
                )
            return committed
        moment = start_at if start_at in ("beginning", "end") else _milliseconds(start_at)
        offset = self._topics.offset(self._names.input, partition, moment)
        return offset if offset >= 0 else self._topics.offset(self._names.input, partition, "end")

    def _write(self, partition: int, partitions: int, position: int, lineage: str) -> None:
        names = self._names
        producer = KafkaTransactions(self._settings, names, partition, self._log, time.monotonic)
        facts = self._admin.describe([names.input, names.changelog, names.snapshot])
        mark = Mark(
            n=0,
            attempt=producer.attempt,
            lineage=lineage,
            service=names.group,
            partition=partition,
            partitions=partitions,
            positions={names.input: position} | _ends(self._admin, self._beside, partition),
            start=position,
            topic_ids={topic: fact.id for topic, fact in facts.items() if fact is not None},
            digest=digest.to_bytes(0),
            format=frame.NEWEST,  # nothing older has run here
            writer=Writer(instance="topics create", version=__version__, reads=frame.NEWEST),
            time=int(time.time() * 1000),
        )
        producer.fence(lambda: False)
        producer.begin()
        for record in (Header(0, producer.attempt, lineage, position, mark.writer), mark):
            producer.send_increment(names.changelog, partition, records.pack(record, mark.format))
        producer.commit()
        producer.drop()


def control_position(admin: Admin, names: Names, partition: int) -> dict[str, int]:
    """Where a first mark begins to obey the control topic: commands that were there before belong to another life."""
    return _ends(admin, [names.control], partition)


def _ends(admin: Admin, topics: Sequence[str], partition: int) -> dict[str, int]:
    """Those that are there and hold something."""
    there = [topic for topic, fact in admin.describe(list(topics)).items() if fact and partition < fact.partitions]
    found = {topic: admin.bounds(topic, partition, _PATIENCE, lambda: False)[1] for topic in there}
    return {topic: end for topic, end in found.items() if end > 0}


def _milliseconds(text: str) -> int:
    """:raises UsageError: neither a number of milliseconds nor an ISO 8601 time."""
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
