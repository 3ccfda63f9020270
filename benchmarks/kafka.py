"""What the benchmarks need of Kafka: topics, ends, readers. Shares no code with statehold's runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

LONG_WAIT = 120.0
_SHORT_WAIT = 5.0


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def create(bootstrap: str, name: str, partitions: int = 1, **settings: str) -> str:
    """Create a topic whose records carry the time at which the broker appended them."""
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    config |= {key.replace("_", "."): value for key, value in settings.items()}
    admin = _admin(bootstrap)
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(LONG_WAIT)
    ends, deadline = Ends(bootstrap, name, partitions), time.monotonic() + LONG_WAIT
    while True:  # every partition must have found its leader
        try:
            ends.stable()
            return name
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def delete(bootstrap: str, *names: str) -> None:
    """Delete topics, so that one contender's files do not lie in the cache during the next one's run."""
    admin = _admin(bootstrap)  # kept: without a reference the futures would never be resolved
    for future in admin.delete_topics(list(names)).values():
        future.result(LONG_WAIT)


class Ends:
    """Asks for the last stable offsets of a topic; cheap enough to ask five times a second."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self._admin = _admin(bootstrap)
        self._wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}  # type: ignore[no-untyped-call]

    def stable(self) -> int:
        """Return the sum of the last stable offsets: committed records and markers."""
        asked = self._admin.list_offsets(self._wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(int(each.result(LONG_WAIT).offset) for each in asked.values())

    def wait(self, count: int, alive: Callable[[], bool], seconds: float) -> bool:
        """Wait until `count` offsets are stable and nothing has been added for 0.6 s; False when it never came."""
        deadline, last, since = time.monotonic() + seconds, -1, time.monotonic()
        while time.monotonic() < deadline:
            try:
                now = self.stable()
            except KafkaException:  # a broker under load may lose its leadership for a moment: ask again
                now = last
            if now != last:
                last, since = now, time.monotonic()
            elif now >= count and time.monotonic() - since > 0.6:
                return True
            if not alive():
                return self.stable() >= count
            time.sleep(0.2)
        return False


class Committed:
    """Asks how far a group has come, and never joins it."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 2}
        self._consumer = Consumer(settings)
        self._places = [TopicPartition(topic, partition) for partition in range(partitions)]

    def total(self) -> int:
        """Return the sum of the committed positions; 0 while the group's coordinator does not answer."""
        try:
            return sum(max(0, place.offset) for place in self._consumer.committed(self._places, _SHORT_WAIT))
        except KafkaException:
            return 0


def size_of(bootstrap: str, topic: str, partitions: int = 1) -> int:
    """Return the bytes of the values of all committed records."""
    return sum(len(message.value() or b"") for message in records_of(bootstrap, topic, partitions))


def records_of(bootstrap: str, topic: str, partitions: int = 1) -> Iterator[Message]:
    """Return all committed records of a topic, partition ends included as the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    open_partitions = partitions
    try:
        while open_partitions:
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions -= 1
                else:
                    raise RuntimeError(f"{topic}: {error}")
    finally:
        consumer.close()
