"""Compare what a service did with what it should have done. Reads Kafka with a plain client; imports nothing
of holdfast.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

Event = dict[str, Any]
Events = Mapping[str, Sequence[Event]]
"""Events of an output topic by their key, each key's in order."""

State = Mapping[str, Mapping[str, bytes]]
"""Encoded values by table and key."""


class Raw(NamedTuple):
    """A record as it lies in a partition."""

    key: str
    value: bytes


@dataclass(frozen=True)
class Findings:
    """What a comparison of one output topic or one table found; `first` describes the first difference in
    words.
    """

    name: str
    expected: int
    seen: int
    lost: int = 0
    duplicated: int = 0
    foreign: int = 0
    reordered: int = 0
    different: int = 0
    first: str | None = None

    @property
    def ok(self) -> bool:
        """True when nothing at all differs."""
        return self.first is None


def read_committed(bootstrap_servers: str, topic: str, patience: float = 60.0) -> dict[int, list[Raw]]:
    """Return every committed record of `topic` by partition, up to the last stable offset.

    The end is told by the end-of-partition event, never by counting: transaction markers consume offsets too.
    Raises TimeoutError when nothing at all arrives in `patience` seconds, KafkaException for client errors.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"proof-{uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=patience).topics[topic].partitions)
        records: dict[int, list[Raw]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        unfinished = set(partitions)
        while unfinished:
            messages = consumer.consume(10_000, timeout=patience)
            if not messages:
                raise TimeoutError(f"{topic}: nothing for {patience:.0f} s, unfinished: {sorted(unfinished)}")
            for message in messages:
                _take(message, records, unfinished)
        return records
    finally:
        consumer.close()


def _take(message: Message, records: dict[int, list[Raw]], unfinished: set[int]) -> None:
    error, partition = message.error(), message.partition()
    if error is None and partition is not None:
        records[partition].append(Raw(_bytes(message.key()).decode(), _bytes(message.value())))
    elif error is not None and error.code() == KafkaError._PARTITION_EOF and partition is not None:
        unfinished.discard(partition)
    else:
        raise KafkaException(error)


def _bytes(value: bytes | str | None) -> bytes:
    return value if isinstance(value, bytes) else (value or "").encode()


def by_key(partitions: Mapping[int, Sequence[Raw]]) -> dict[str, list[Event]]:
    """Decode JSON events and group them by key. ValueError for a key in two partitions: it has no order."""
    events: dict[str, list[Event]] = defaultdict(list)
    home: dict[str, int] = {}
    for partition, records in partitions.items():
        for key, value in records:
            if home.setdefault(key, partition) != partition:
                raise ValueError(f"key {key!r} lies in partitions {home[key]} and {partition}")
            events[key].append(json.loads(value))
    return events


def compare_events(name: str, expected: Events, seen: Events, identity: str = "id") -> Findings:
    """Compare two streams key by key. Events are the same event when key and `identity` field are equal."""
    lost = duplicated = foreign = reordered = different = 0
    first: str | None = None
    for key in sorted(expected.keys() | seen.keys()):
        wanted, found = expected.get(key, ()), seen.get(key, ())
        if list(wanted) == list(found):
            continue
        first = first or _first_difference(name, key, wanted, found)
        order_wanted = [event[identity] for event in wanted]
        order_found = [event[identity] for event in found]
        counts, known = Counter(order_found), set(order_wanted)
        lost += len(known - counts.keys())
        foreign += sum(count for one, count in counts.items() if one not in known)
        duplicated += sum(count - 1 for one, count in counts.items() if one in known)
        once = list(dict.fromkeys(one for one in order_found if one in known))
        reordered += once != [one for one in order_wanted if one in counts]
        content = {event[identity]: event for event in wanted}
        different += sum(content.get(event[identity], event) != event for event in found)  # known ones only
    return Findings(
        name, _size(expected), _size(seen), lost, duplicated, foreign, reordered, different, first
    )


def compare_state(
    expected: Mapping[str, Mapping[str, Any]],
    state: State,
    decode: Callable[[bytes], Any] = msgspec.msgpack.decode,
) -> list[Findings]:
    """Compare tables key by key; `decode` turns a stored value into plain dicts and numbers."""
    findings = []
    for table in sorted(expected.keys() | state.keys()):
        wanted = {key: [{"id": key, "value": value}] for key, value in expected.get(table, {}).items()}
        found = {key: [{"id": key, "value": decode(raw)}] for key, raw in state.get(table, {}).items()}
        findings.append(compare_events(table, wanted, found))
    return findings


def _size(events: Events) -> int:
    return sum(map(len, events.values()))


def _first_difference(name: str, key: str, wanted: Sequence[Event], found: Sequence[Event]) -> str:
    for index, (want, have) in enumerate(zip(wanted, found, strict=False)):
        if want != have:
            return f"{name}, key {key}, event {index}: expected {want}, found {have}"
    if len(wanted) > len(found):
        return f"{name}, key {key}: event {len(found)} is missing: {wanted[len(found)]}"
    return f"{name}, key {key}: one event too many: {found[len(wanted)]}"
