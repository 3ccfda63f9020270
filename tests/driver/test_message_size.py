"""What is too large for a message of the service is too large in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from confluent_kafka import KafkaException, Producer

from statehold import Handler, Output, Policy, Record, dead_letter
from statehold.config import load
from statehold.errors import MessageRefused, OutputRefused, UsageError
from statehold.testing import Driver
from statehold.testing.memory.message_size import require_size

MOST = 20_000
HEADERS: list[list[tuple[str, bytes]]] = [
    [],
    [("a", b"b")],
    [("a", b"")],
    [("a" * 200, b"b" * 63), ("a", b"b" * 300)],
    [("a", b"b" * 8191), ("c", b"d" * 8192)],
]


class Copies(Handler[int]):
    copies = Output("copies", value=bytes)

    def on_record(self, record: Record[int]) -> None:
        self.copies.send(bytes(record.value))

    def on_command(self, command: object, record: object) -> None:
        """Accept any."""


class Tolerant(Copies):
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {OutputRefused: dead_letter(ordered=False)}


def test_an_output_that_the_service_cannot_send_is_rejected_at_its_record() -> None:
    driver = Driver(Copies)
    driver.feed(900_000)
    with pytest.raises(OutputRefused, match=r"input\[0\]@1: .*MSG_SIZE_TOO_LARGE.* copies, kafka.message_max_bytes"):
        driver.feed(2_000_000)


def test_the_limit_is_the_setting_and_a_policy_covers_it() -> None:
    driver = Driver(
        Tolerant, settings=load(overrides={"kafka.message_max_bytes": str(MOST), "snapshot.chunk_bytes": "16384"})
    )
    for size in (10, MOST, 20):
        driver.feed(size)
    driver.commit()
    assert [len(copy) for copy in driver.outputs("copies")] == [10, 20]
    assert [(letter.offset, letter.error) for letter in driver.dead_letters()] == [(1, "OutputRefused")]


def test_a_command_of_the_control_topic_that_the_service_would_ignore_is_rejected() -> None:
    driver = Driver(Copies)
    driver.command("small", bytes(200_000), via_control_topic=True)
    with pytest.raises(UsageError, match="a quarter of"):
        driver.command("large", bytes(300_000), via_control_topic=True)


@pytest.mark.parametrize("key", [None, b"", b"key" * 50])
@pytest.mark.parametrize("headers", HEADERS)
def test_it_is_the_size_that_the_client_computes(key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": MOST, "log_level": 0})

    def client(length: int) -> bool:
        try:
            producer.produce("t", bytes(length), key, headers=list(headers))
        except KafkaException:
            return False
        return True

    def computed(length: int) -> bool:
        try:
            require_size("t", bytes(length), key, headers, MOST)
        except MessageRefused:
            return False
        return True

    most = next(length for length in range(MOST, -1, -1) if computed(length))
    assert (client(most), client(most + 1)) == (True, False)
    producer.purge()
    producer.flush(1)
