"""Finds records of ended transactions that brokers have left open (KAFKA-20734; seen with 4.4.0).

If a transaction ends while one of its partitions has no leader, these brokers treat the partition as deleted, write no
marker there, and complete the transaction. Its records then hide the end of that partition. The next transaction of
the same id that reaches the partition includes them, and commits what was aborted.

A new owner therefore checks after it has fenced. Whatever its own id has open then has ended, and the group's offset
shows how. A transaction that reaches the same partitions and is aborted discards the aborted records. Transactions of
other ids stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition

from statehold.bound.output import origin_of
from statehold.common.deadline import Deadline
from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import ATTEMPT, LATEST, ask_offsets, require_offset, result
from statehold.kafka.clients.unwritable_partitions import Place
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import about, describe
from statehold.ports import Cancelled
from statehold.telemetry.log_events import Log

#: seconds to wait first, because open transactions of other owners mostly end within them
_PATIENCE: Final = 0.2
#: pause between two looks meanwhile
_PAUSE: Final = 0.05
#: seconds to read the hidden records
_READING: Final = 10.0
#: records and seconds of one poll; `cancelled` is checked after each
_BATCH: Final = 500
_POLL: Final = 0.1


class HiddenRecords:
    """For the transactional id of one input partition. One thread uses it; every call blocks."""

    def __init__(
        self,
        settings: Settings,
        admin: Admin,
        names: Names,
        partition: int,
        outputs: Mapping[str, int],
        number_of: Callable[[bytes], int],
        log: Log,
    ) -> None:
        """`outputs`: topic -> its partitions. `number_of`: a changelog record's transaction number, or -1."""
        self._number_of = number_of
        self._settings, self._admin, self._names, self._partition, self._log = settings, admin, names, partition, log
        own: Place = (names.changelog, partition)
        self._places = [own, *((topic, p) for topic, count in outputs.items() for p in range(count))]

    def aborted(self, cancelled: Callable[[], bool]) -> list[Place]:
        """Return the partitions with hidden records of an aborted transaction of this id. Call it after a fence.

        :raises KafkaTrouble: not every partition's leader has answered. :raises Cancelled: by `cancelled`.
        """
        ends = self._ends(self._places, IsolationLevel.READ_UNCOMMITTED, cancelled)
        deadline = Deadline(_PATIENCE)
        while True:
            stable = self._ends(list(ends), IsolationLevel.READ_COMMITTED, cancelled)
            ends = {place: end for place, end in ends.items() if stable[place] < end}
            if not ends or deadline.passed:
                break
            time.sleep(_PAUSE)
        return self._ours({place: (stable[place], end) for place, end in ends.items()}, cancelled) if ends else []

    def _ours(self, hidden: Mapping[Place, tuple[int, int]], cancelled: Callable[[], bool]) -> list[Place]:
        """Return those with a record of a transaction of this id after the one that the group's offset belongs to.

        The stable offset is read, because it waits until a transaction's end has reached the group.
        """
        noted = self._admin.noted(self._names.input, self._partition)
        if noted is None or noted.n < 0:
            return []  # because an older release wrote the offset without a number
        found = {place: self._numbers(place, *bounds, cancelled) for place, bounds in hidden.items()}
        ended = {n for numbers in found.values() for n in numbers if n <= noted.n}
        if ended and (self._names.changelog, self._partition) in found:
            self._log.error("commit_hidden", n=max(ended), cause="a committed transaction has no marker in the log")
        return [place for place, numbers in found.items() if numbers and min(numbers) > noted.n]

    def _numbers(self, place: Place, start: int, end: int, cancelled: Callable[[], bool]) -> set[int]:
        """Return the numbers of this id's transactions that have hidden records there."""
        config: dict[str, Any] = dict(client.reader(self._settings, self._names.group, isolation="read_uncommitted"))
        consumer = Consumer(quiet(config, "remains"))
        numbers: set[int] = set()
        try:
            consumer.assign([TopicPartition(*place, start)])
            deadline, position = Deadline(_READING), start
            while position < end and not deadline.passed:
                if cancelled():
                    raise Cancelled
                for message in consumer.consume(_BATCH, _POLL):
                    error = message.error()
                    if error is None:
                        numbers.add(self._number(place, message))
                    elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        # The start has reported the missing right. Only this topic stays unchecked.
                        self._log.warning("right_missing", right=f"READ on topic {place[0]}", cause=describe(error))
                        return numbers - {-1}
                position = max(position, consumer.position([TopicPartition(*place)])[0].offset)
        finally:
            consumer.close()
        return numbers - {-1}

    def _number(self, place: Place, message: Message) -> int:
        """Return the number of a record's transaction; -1 if it belongs to another id or has none."""
        if place[0] != self._names.changelog:
            headers: Any = message.headers()
            origin = origin_of(headers)
            return origin.n if origin is not None and origin.partition == self._partition else -1
        return self._number_of(message.value() or b"")

    def _ends(
        self, places: Sequence[Place], isolation: IsolationLevel, cancelled: Callable[[], bool]
    ) -> dict[Place, int]:
        futures = ask_offsets(self._admin.client, places, LATEST, isolation, ATTEMPT)
        ends: dict[Place, int] = {}
        for (topic, partition), future in futures.items():
            try:
                ends[topic, partition] = require_offset(result(future, cancelled).offset)
            except KafkaTrouble as error:
                for asked in dict.fromkeys(asked for asked, _ in places):
                    self._admin.look_again(asked)  # a leader may have moved
                raise about(f"{topic}[{partition}]", error) from error.__cause__
        return ends
