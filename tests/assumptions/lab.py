"""What the experiments share: a producer whose every sign of trouble is kept, and an independent reader."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.support.proxy import ApiKey, Fault, Proxy, Trap

PATIENCE = 20.0
SOCKET_TIMEOUT_MS = 1500  # after this long without an answer librdkafka sends a request again
STATISTICS_MS = 100


class Lines(logging.Handler):
    """librdkafka's log lines in the order in which they reached Python."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@dataclass
class Signs:
    """Everything a producer says about trouble besides the results of calls."""

    log: Lines = field(default_factory=Lines)
    errors: list[str] = field(default_factory=list)
    statistics: list[dict[str, dict[str, int]]] = field(default_factory=list)

    def end_txns(self) -> int:
        """Return how many EndTxn requests the newest statistics count."""
        return sum(kinds.get("EndTxn", 0) for kinds in self.statistics[-1].values()) if self.statistics else 0


class Lab:
    """One test's topics, ids and clients. Use from one thread."""

    def __init__(self, bootstrap: str, proxy: Proxy) -> None:
        self.bootstrap, self.proxy = bootstrap, proxy
        self.run = uuid.uuid4().hex[:10]
        self.id = f"tx-{self.run}"
        self.group = f"group-{self.run}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.member = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, "enable.auto.commit": False})
        self._producers: list[Producer] = []

    def topic(self, name: str) -> str:
        """Create topic `name` with one partition and return its real, unique name."""
        real = f"{name}-{self.run}"
        self.admin.create_topics([NewTopic(real, 1, 1)])[real].result(PATIENCE)
        return real

    def producer(self, signs: Signs | None = None, *, log_level: int = 6, **more: object) -> Producer:
        """Return a producer with this test's id, after `init_transactions`."""
        signs = signs or Signs()
        logger = logging.getLogger(f"lab-{uuid.uuid4().hex}")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(signs.log)
        made = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.id,
                "transaction.timeout.ms": 60_000,
                "socket.timeout.ms": SOCKET_TIMEOUT_MS,
                "retry.backoff.ms": 2,
                "log_level": log_level,
                "statistics.interval.ms": STATISTICS_MS,
                "error_cb": lambda error: signs.errors.append(error.name()),
                "stats_cb": lambda text: signs.statistics.append(_requests(text)),
                **more,
            },
            logger=logger,
        )
        made.init_transactions(PATIENCE)
        self._producers.append(made)
        return made

    def close(self) -> None:
        """Drop the clients; producers unclosed: an open transaction would make that wait."""
        self._producers.clear()
        self.member.close()

    def retried_end(self, producer: Producer, *, commit: bool, fault: Fault) -> Trap:
        """End the open transaction while the network delays the first EndTxn; the retry succeeds."""
        trap = self.proxy.trap(ApiKey.END_TXN, fault)
        if commit:
            producer.commit_transaction(PATIENCE)
        else:
            producer.abort_transaction(PATIENCE)
        trap.wait_caught()
        return trap

    def land(self, trap: Trap, *topics: str) -> None:
        """Deliver the delayed EndTxn into the open transaction and wait for its markers on `topics`."""
        ends = {topic: self.end(topic) for topic in topics}
        assert trap.end_txn_error() == 0, "the delayed EndTxn was refused"
        for topic, end in ends.items():
            wait_until(lambda topic=topic, end=end: self.end(topic) > end, f"a marker on {topic}")  # type: ignore[misc]

    def committed(self, topic: str) -> list[str]:
        """Return what a read_committed reader sees up to the last stable offset."""
        return [_text(message) for message in self._read(topic, "read_committed")]

    def all_records(self, topic: str) -> list[str]:
        """Return every record, aborted ones included."""
        return [_text(message) for message in self._read(topic, "read_uncommitted")]

    def end(self, topic: str) -> int:
        """Return the offset behind the last record or marker, committed or not."""
        where = TopicPartition(topic, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return int(self.admin.list_offsets({where: latest})[where].result(PATIENCE).offset)

    def wait_quiet(self, producer: Producer, signs: Signs) -> None:
        """Serve callbacks until two more statistics have come: the counters then include everything that happened."""
        seen = len(signs.statistics)
        wait_until(lambda: producer.poll(0.02) >= 0 and len(signs.statistics) >= seen + 2, "statistics")

    def group_offset(self, topic: str) -> int:
        """Return the group's stable committed offset for `topic`; -1001 when it has none."""
        return int(self.member.committed([TopicPartition(topic, 0)], PATIENCE)[0].offset)

    def send_offset(self, producer: Producer, topic: str, offset: int) -> None:
        """Add the group's offset to the open transaction, as a consumer that is no member (assign only)."""
        metadata = self.member.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, PATIENCE)

    def _read(self, topic: str, isolation: str) -> Iterator[Message]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"reader-{self.run}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(PATIENCE)
                assert message is not None, f"no end of {topic}"
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                assert error is None, error
                yield message
        finally:
            consumer.close()


def send(producer: Producer, topic: str, value: str) -> int:
    """Produce one record, wait for its delivery report and return the error code in it; 0 for success."""
    codes: list[int] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        codes.append(error.code() if error is not None else 0)

    producer.produce(topic, value.encode(), partition=0, on_delivery=delivered)
    wait_until(lambda: producer.poll(0.01) >= 0 and bool(codes), f"the delivery report of {value}")
    return codes[0]


def error_of(call: Callable[[], object]) -> KafkaError | None:
    """Run `call`; return the Kafka error it raised, or None."""
    try:
        call()
    except KafkaException as raised:
        error = raised.args[0]
        assert isinstance(error, KafkaError)
        return error
    return None


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Ask again every 10 ms until `condition` holds; AssertionError after 20 s."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.01)


def _text(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


def _requests(text: str) -> dict[str, dict[str, int]]:
    return {name: broker["req"] for name, broker in json.loads(text)["brokers"].items()}
