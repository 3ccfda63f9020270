"""Reads a partition between two offsets, with assign() and without a group (P23-P25, requirement C5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import DamagedIncrement, HangingTransaction, RestoreTimeout
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topic_absence import may_mean_absence
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import about, describe, translate
from statehold.ports import Cancelled, Clock, OutOfRange

#: seconds for one poll: `cancelled` is checked after each
_WAIT: Final = 0.02
#: seconds without a record after which a leader counts as unreachable
_SILENCE: Final = 5.0
#: a checksum that differs, or a batch that cannot be unpacked; the client would skip the batch
_DAMAGED: Final = (KafkaError._BAD_MSG, KafkaError.INVALID_MSG, KafkaError._BAD_COMPRESSION)
#: seconds for the first metadata of a topic; the read itself waits longer
_LEARN: Final = 1.0


class KafkaReader:
    """`ports.Reader` on librdkafka, read_committed. `cancelled` ends every call within a few hundredths of a second."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        admin: Admin,
        cancelled: Callable[[], bool],
        clock: Clock,
        contact: NoContact | None = None,
        *,
        small: bool = False,
    ) -> None:
        """`small`: read little ahead; see `config.client.reader`."""
        self._settings, self._admin, self._contact = settings, admin, contact or NoContact()
        self._cancelled, self._clock = cancelled, clock
        config = quiet(client.reader(settings, group, small=small), "reader")
        self._consumer = Consumer(config)
        self._known: set[str] = set()
        #: the number of the read to which the client is assigned; 0: none
        self._reads = self._reading = 0

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._admin.bounds(topic, partition, self._settings.restore.deadline, self._cancelled)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        if start >= end:
            return
        self._learn(topic)
        self._consumer.assign([TopicPartition(topic, partition, start)])
        self._reads += 1
        mine = self._reading = self._reads
        try:
            yield from self._read(topic, partition, start, end, most)
        finally:
            if self._reading == mine:  # an abandoned read may end when another one has begun, or after the close
                self._reading = 0
                self._consumer.unassign()

    def cancelled(self) -> bool:
        return self._cancelled()

    def _read(self, topic: str, partition: int, position: int, end: int, most: int) -> Iterator[Sequence[Message]]:
        """End by offset or by the end-of-partition event, never by counting, because markers take offsets too."""
        waiting_since, blocked_at = self._clock(), -1
        while position < end:
            if self._cancelled():
                raise Cancelled
            with self._contact.call("a reader's poll", STUCK_AFTER, partition=partition):
                messages = self._consumer.consume(most, _WAIT)
            reached = -1
            if any(map(Message.error, messages)):
                try:
                    reached = self._events(messages, end)
                except DamagedIncrement as error:
                    if before := _below(_records(messages), error.position):
                        yield before
                    raise
                messages = _records(messages)
            if messages:
                position = (messages[-1].offset() or 0) + 1
                if messages := _below(messages, end):
                    yield messages
            if reached >= 0:
                blocked_at = reached
                position = max(position, reached)
            if messages or reached >= 0:
                self._contact.works(partition)
                waiting_since = self._clock()
            else:
                self._check_patience(topic, partition, waiting_since, blocked_at, end)

    def _learn(self, topic: str) -> None:
        """Ask for a topic's metadata before its first read.

        The client itself would ask up to a second later (measured: 0.95 s), and would not report a missing right.
        """
        if topic not in self._known:
            try:
                with self._contact.call("list_topics", STUCK_AFTER):
                    found = self._consumer.list_topics(topic, _LEARN).topics.get(topic)
            except KafkaException:
                return  # because the read itself waits for the brokers, with its own deadline
            if found is not None and found.error is not None:
                _require_right(topic, found.error)
            self._known.add(topic)

    def _events(self, messages: Sequence[Message], end: int) -> int:
        """Return the offset of an end-of-partition event among these, or -1.

        A damaged batch from `end` on ends the read, too: the client fetches ahead, and nothing below `end` is left.
        """
        reached = -1
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                reached = message.offset() or 0
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise OutOfRange(f"{message.topic()}[{message.partition()}]: {describe(error)}")
            elif error.code() in _DAMAGED and (message.offset() or 0) >= end:
                reached = max(reached, end)
            elif error.code() in _DAMAGED:
                raise DamagedIncrement(
                    f"a record batch is damaged on the broker's disk: {describe(error)}. Nothing was changed. Next: "
                    f"make another replica the leader, whose copy may be whole (kafka-leader-election.sh). If no copy "
                    f"is whole: `statehold snapshot restore` from a backup, or `statehold repair rebase`",
                    topic=message.topic() or "",
                    partition=message.partition() or 0,
                    position=message.offset() or 0,
                )
            _require_right(message.topic() or "", error)
            if may_mean_absence(error):
                self._admin.require_existing(message.topic() or "", message.partition() or 0)
        return reached

    def _check_patience(self, topic: str, partition: int, since: float, blocked_at: int, end: int) -> None:
        waited = self._clock() - since
        if blocked_at < 0 and waited > _SILENCE:
            self._contact.broken(partition, f"no data of {topic}[{partition}] for {waited:.0f} s")
        settings = self._settings
        if blocked_at >= 0 and waited > settings.restore.hanging_after:
            raise HangingTransaction(
                f"committed records end at {blocked_at}, the log at {end}, for {waited:.0f} s: an open transaction of "
                f"another producer hides the rest. `statehold txn list --topic {topic}` names it, "
                f"`statehold txn abort` ends it. Next: statehold retry {partition}",
                topic=topic,
                partition=partition,
                position=blocked_at,
            )
        if waited > settings.restore.deadline:
            raise RestoreTimeout(
                f"no data for {waited:.0f} s (restore.deadline); are the brokers reachable? statehold retries by "
                f"itself; `statehold retry {partition}` retries now",
                topic=topic,
                partition=partition,
            )

    def close(self) -> None:
        self._reading = 0
        with self._contact.call("a reader's close", STUCK_AFTER):
            self._consumer.close()


def _records(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the client's events."""
    return [message for message in messages if message.error() is None]


def _below(messages: list[Message], end: int) -> list[Message]:
    """Return the records below this offset, mostly all."""
    if not messages or (messages[-1].offset() or 0) < end:
        return messages
    return [message for message in messages if (message.offset() or 0) < end]


def _require_right(topic: str, error: KafkaError) -> None:
    """:raises Misconfigured: the error reports a missing right on the topic."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raised = KafkaException(error)
        raise about(topic, translate(raised)) from raised
