"""Readers of the output: one that reads along while the faults happen, and one that reads everything in the end."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from tests.chaos.history import History
from tests.chaos.rows import Row, row_of
from tests.chaos.workload import Running

PATIENT: dict[str, Any] = {
    "socket.timeout.ms": 6000,
    "metadata.recovery.strategy": "none",
    "allow.auto.create.topics": False,
    "log_level": 2,  # its connections are broken on purpose
}


def consumer(servers: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"chaos-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **PATIENT,
        }
    )


def partitions_of(client: Consumer, topic: str, seconds: float = 60.0) -> list[int]:
    """The partitions of a topic. A broker that has just restarted may not know it yet, and names no partition then.

    Raises AssertionError when it is not known within this number of `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = client.list_topics(topic, timeout=60).topics[topic]
        if found.partitions and found.error is None:
            return sorted(found.partitions)
        assert time.monotonic() < deadline, f"{topic}: no broker knows its partitions: {found.error}"
        time.sleep(0.1)


def read_all(servers: str, topic: str, history: History, seconds: float = 120.0) -> list[Row]:
    """Every committed record of a topic, each partition's in order; from the log start on.

    Raises AssertionError when nothing came for this number of `seconds` before the end.
    """
    client = consumer(servers)
    try:
        unfinished = set(partitions_of(client, topic))
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in sorted(unfinished)])
        rows: list[Row] = []
        deadline = history.now() + seconds
        while unfinished:
            assert history.now() < deadline, f"{topic}: partitions {sorted(unfinished)} did not come to their end"
            for message in client.consume(1000, 0.2):
                deadline = history.now() + seconds
                error = message.error()
                if error is None:
                    rows.append(row_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition() or 0)
                elif error.fatal():
                    raise KafkaException(error)
        return rows
    finally:
        client.close()


def committed(servers: str, group: str, places: list[TopicPartition], timeout: float) -> dict[int, int]:
    """The group's offsets by partition; asked of a consumer that joins nothing. Raises KafkaException."""
    asking = Consumer({"bootstrap.servers": servers, "group.id": group, **PATIENT})
    try:
        return {place.partition: place.offset for place in asking.committed(places, timeout)}
    finally:
        asking.close()


class Observer:
    """Reads the output along, read_committed, and remembers what it saw and when."""

    def __init__(self, servers: str, topic: str, history: History) -> None:
        self._history = history
        #: (partition, offset) -> trade's id
        self.seen: dict[tuple[int, int], str] = {}
        self.answered: set[str] = set()
        #: account -> number of the last answer that was read
        self._counts: dict[str, int] = {}
        #: polls that went backwards: (when, what)
        self.backwards: list[str] = []
        #: input partition -> times at which its answers came
        self.progress: dict[int, list[float]] = defaultdict(list)
        self._partition_of: dict[str, int] = {}
        self._stop = threading.Event()
        self._client = consumer(servers)
        places = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions_of(self._client, topic)]
        self._client.assign(places)
        self._decode = msgspec.json.Decoder(Running).decode
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self, partition_of: dict[str, int]) -> None:
        """`partition_of`: account -> input partition."""
        self._partition_of = partition_of
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        last: dict[int, int] = {}
        while not self._stop.is_set():
            batch: dict[int, list[str]] = defaultdict(list)
            for message in self._client.consume(1000, 0.1):
                if message.error() is not None:
                    continue  # it reads on by itself; what never comes the checkers find
                partition, offset = message.partition() or 0, message.offset() or 0
                if offset <= last.get(partition, -1):
                    self.backwards.append(f"partition {partition}: {offset} after {last[partition]}")
                last[partition] = offset
                batch[partition].append(self._take(partition, offset, message.value() or b""))
            for partition, ids in batch.items():
                self._history.note("read", partition=partition, to=last[partition], ids=ids)

    def _take(self, partition: int, offset: int, value: bytes | str) -> str:
        answer = self._decode(value)
        if answer.count <= self._counts.get(answer.account, 0):
            self.backwards.append(f"account {answer.account}: answer {answer.count} ({answer.id}) again or too late")
        self._counts[answer.account] = answer.count
        self.seen[partition, offset] = answer.id
        self.answered.add(answer.id)
        origin = self._partition_of.get(answer.account, -1)
        times, now = self.progress[origin], self._history.now()
        if not times or now - times[-1] > 0.05:
            times.append(now)
        return answer.id
