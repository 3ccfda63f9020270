"""A record batch that is damaged on a broker's disk is named; no reader skips it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from tests.support.snapshot_records import PLACE, commit_record, manifest

from statehold.config.settings import Settings
from statehold.errors import DamagedIncrement
from statehold.kafka.clients import reader as reading
from statehold.kafka.clients.reader import KafkaReader
from statehold.snapshot.damaged_batches import read_around_damage
from statehold.snapshot.format import records
from statehold.snapshot.format.records import EntryDecoder, FullRef, Manifest
from statehold.snapshot.full import FullUnusable, load
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.state.state import State


class DamagedConsumer:
    """Gives out one error, as librdkafka does before it skips the batch."""

    code = KafkaError._BAD_MSG

    def __init__(self, config: dict[str, Any]) -> None: ...

    def list_topics(self, *_: Any) -> Any:
        return type("Topics", (), {"topics": {}})

    def assign(self, _: Any) -> None: ...

    def unassign(self) -> None: ...

    def consume(self, *_: Any) -> list[Message]:
        return [Message(topic="topic", partition=3, offset=7, error=KafkaError(self.code, "CRC32C"))]


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError.INVALID_MSG, KafkaError._BAD_COMPRESSION])
def test_a_reader_names_a_damaged_batch(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(DamagedConsumer, "code", code)
    monkeypatch.setattr(reading, "Consumer", DamagedConsumer)
    admin: Any = None
    reader = KafkaReader(Settings(), "group", admin, lambda: False, time.monotonic)
    with pytest.raises(DamagedIncrement, match=r"damaged on the broker's disk.*Next: ") as failure:
        list(reader.read("topic", 3, 5, 20))
    assert (failure.value.topic, failure.value.partition, failure.value.position) == ("topic", 3, 7)


def test_a_batch_beyond_the_records_that_are_asked_for_is_no_damage_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client fetches ahead, and reports what it met behind them in the same poll."""
    monkeypatch.setattr(DamagedConsumer, "code", KafkaError._BAD_MSG)
    monkeypatch.setattr(DamagedConsumer, "consume", lambda *_: [Message(topic="topic", partition=3, offset=6), *AHEAD])
    monkeypatch.setattr(reading, "Consumer", DamagedConsumer)
    admin: Any = None
    reader = KafkaReader(Settings(), "group", admin, lambda: False, time.monotonic)
    assert [message.offset() for batch in reader.read("topic", 3, 5, 7) for message in batch] == [6]


class SeveralInOnePoll(DamagedConsumer):
    """Gives out all that follows the assigned offset in one poll; the batch at 7 is damaged."""

    at = 0

    def assign(self, places: Any) -> None:
        self.at = places[0].offset

    def consume(self, *_: Any) -> list[Message]:
        damaged = Message(topic="topic", partition=3, offset=7, error=KafkaError(KafkaError._BAD_MSG, "CRC32C"))
        found = [damaged if at == 7 else Message(topic="topic", partition=3, offset=at) for at in range(self.at, 10)]
        self.at = 10
        return found


def test_the_records_that_came_in_the_poll_of_a_damaged_batch_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Consumer", SeveralInOnePoll)
    admin: Any = None
    reader = KafkaReader(Settings(), "group", admin, lambda: False, time.monotonic)
    found: list[int | None] = []
    for batch in read_around_damage(reader, "topic", 3, 5, 10):
        found += [-7] if isinstance(batch, DamagedIncrement) else [message.offset() for message in batch]
    assert found == [5, 6, -7, 8, 9]


class LongDamage:
    """A log of good records with damaged batches: (first offset, next offset) of each."""

    def __init__(self, *damaged: tuple[int, int]) -> None:
        self._damaged, self.reads = damaged, 0

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Any]]:
        self.reads += 1
        for offset in range(start, end):
            for first, after in self._damaged:
                if first <= offset < after:
                    raise DamagedIncrement(
                        "a record batch is damaged", topic=topic, partition=partition, position=first
                    )
            yield [Message(topic=topic, partition=partition, offset=offset)]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 64, 1000, 65_536])
def test_the_end_of_a_damaged_batch_is_found_with_few_reads(length: int) -> None:
    """One read for each of its records took minutes."""
    first, second = (100, 100 + length), (100 + length, 103 + length)
    log: Any = LongDamage(first, second, (110 + length, 10**6))
    found: list[int | None] = []
    for batch in read_around_damage(log, "topic", 3, 98, 112 + length):
        found += [-batch.position] if isinstance(batch, DamagedIncrement) else [each.offset() for each in batch]
    good = range(103 + length, 110 + length)
    assert found == [98, 99, -100, -(100 + length), *good, -(110 + length)]
    assert log.reads <= 15 + 2 * length.bit_length()


class DamagedBeginning:
    """A truncation has left the end of the batch that begins at 7, which is damaged; nothing follows it."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 9, 12

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Any]]:
        raise DamagedIncrement("a record batch is damaged", topic=topic, partition=partition, position=7)

    def cancelled(self) -> bool:
        return False

    def close(self) -> None: ...


def test_a_damaged_batch_with_which_the_log_begins_is_no_empty_log() -> None:
    with pytest.raises(DamagedIncrement):
        last_commit_record(DamagedBeginning(), "topic", 3)
    assert len(list(read_around_damage(DamagedBeginning(), "topic", 3, 9, 12))) == 1, "it is named once"


AHEAD = [Message(topic="topic", partition=3, offset=7, error=KafkaError(KafkaError._BAD_MSG, "CRC32C"))]


class DamagedReader:
    """Kafka has the manifest of a full, and one of its batches is damaged."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = records.pack(manifest)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, 11

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Any]]:
        if start < 10:
            raise DamagedIncrement("a record batch is damaged", topic=topic, partition=partition, position=start)
        message: Any = Message(topic=topic, partition=partition, offset=10, value=self._manifest)
        yield [message]

    def cancelled(self) -> bool:
        return False

    def close(self) -> None: ...


def test_a_full_snapshot_with_a_damaged_batch_is_unusable_so_that_an_older_one_is_used() -> None:
    last = commit_record(3)
    with pytest.raises(FullUnusable, match="a record batch is damaged"):
        load(DamagedReader(manifest(last, low=4)), PLACE, FullRef(4, 10, 3, 3, 0), last, State([]), EntryDecoder({}))
