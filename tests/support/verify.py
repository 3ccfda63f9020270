"""The verifier: reads input, output and snapshots from Kafka by itself and computes everything again.

Outputs and positions are read with plain confluent_kafka. The state is what a restore of changelog and snapshot topics
gives, compared with a fold over the input; the digest is computed from the description of the format, not by its code.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import xxhash
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tests.support.apps.tally import CLEAR, COMMANDS, WITNESS, Event, Line, Tally, Total

from statehold.bound.table import bind
from statehold.common.names import Names
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.reader import KafkaReader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.restore import Restored, restore
from statehold.state.digest import show
from statehold.state.state import State

#: a frozen broker must not stop the test's own clients for a minute; no rebootstrap: librdkafka issue 5511
PATIENT: dict[str, Any] = {"socket.timeout.ms": 6000, "metadata.recovery.strategy": "none"}


class Row(NamedTuple):
    partition: int
    offset: int
    key: str
    value: bytes
    #: input partition, transaction and ordinal, as the record's last header says
    origin: tuple[int, int, int] | None = None


def read_all(servers: str, topic: str, isolation: str = "read_committed") -> dict[int, list[Row]]:
    """Every record of a topic by partition, up to the end that the isolation level allows.

    Of a topic that is being written: up to where it ended when this began.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"verifier-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        rows: dict[int, list[Row]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
        unfinished, heard = set(partitions), time.monotonic()
        while unfinished:
            messages = consumer.consume(5000, 0.1)
            heard = time.monotonic() if messages else heard
            assert time.monotonic() - heard < 60, f"{topic}: nothing for 60 s, unfinished {unfinished}"
            for message in messages:
                _take(message, rows, unfinished)
            unfinished -= {p for p in unfinished if rows[p] and rows[p][-1].offset >= ends[p] - 1}
        return {p: [row for row in each if row.offset < ends[p]] for p, each in rows.items()}
    finally:
        consumer.close()


def _take(message: Message, rows: dict[int, list[Row]], unfinished: set[int]) -> None:
    error, partition = message.error(), message.partition() or 0
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        unfinished.discard(partition)
        return
    key, value = message.key() or b"", message.value() or b""
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    headers: Any = message.headers() or [("", b"")]
    name, data = headers[-1]
    origin = struct.unpack("<IQI", data) if name == "sh" and isinstance(data, bytes) else None
    rows[partition].append(Row(partition, message.offset() or 0, key.decode(), value, origin))


def require_unique_origins(servers: str, topic: str) -> None:
    """Require that no two outputs name the same place in a transaction: consumers drop repetitions by it."""
    origins = Counter(row.origin for rows in read_all(servers, topic).values() for row in rows)
    assert origins
    assert None not in origins
    assert max(origins.values()) == 1, [each for each, count in origins.items() if count > 1][:5]


@dataclass
class Fold:
    """What the handler must have done with an input."""

    #: by key, in the order of the key's input partition
    lines: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    #: by input partition, then key
    totals: dict[int, dict[str, Total]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


class PinnedCommand(NamedTuple):
    """A command of the control topic that stood after all records below `position`."""

    position: int
    offset: int
    value: bytes


def fold(inputs: dict[int, list[Row]], control: Mapping[int, Sequence[PinnedCommand]] | None = None) -> Fold:
    """The handler's work again, in other words."""
    result, decode = Fold(), msgspec.json.Decoder(Event).decode
    for partition, rows in inputs.items():
        counts: dict[str, int] = defaultdict(int)
        sums: dict[str, int] = defaultdict(int)
        for row in _merged(rows, (control or {}).get(partition, ())):
            if isinstance(row, PinnedCommand):
                key = f"{COMMANDS}-{partition}"
                counts[key], sums[key] = counts[key] + 1, (sums[key] * 31 + counts.get(WITNESS, 0)) % 1_000_003
                result.lines[key].append(Line(partition, row.offset, int(row.value), counts[key], sums[key]))
                continue
            if not row.value:
                continue  # a command
            event = decode(row.value)
            counts[row.key] += 1
            sums[row.key] += event.amount
            if event.amount == CLEAR:
                del counts[row.key], sums[row.key]
                result.lines[row.key].append(Line(partition, row.offset, event.id, 0, 0))
                continue
            line = Line(partition, row.offset, event.id, counts[row.key], sums[row.key])
            result.lines[row.key].append(line)
        result.totals[partition] = {key: Total(counts[key], sums[key]) for key in counts}
        result.ends[partition] = rows[-1].offset + 1 if rows else 0
    return result


def _merged(rows: Sequence[Row], control: Sequence[PinnedCommand]) -> Iterator[Row | PinnedCommand]:
    left = deque(control)
    for row in rows:
        while left and left[0].position <= row.offset:
            yield left.popleft()
        yield row
    yield from left


def digest_of(totals: dict[str, Total]) -> str:
    """The sum of one hash per key, modulo 2^128: of the value, seeded with that of the key, seeded with the table's."""
    table = xxhash.xxh3_64_intdigest(b"totals")
    encode = msgspec.msgpack.encode
    hashes = (
        xxhash.xxh3_128_intdigest(encode(total), xxhash.xxh3_64_intdigest(key.encode(), table))
        for key, total in totals.items()
    )
    return f"{sum(hashes) % 2**128:032x}"


def check_outputs(servers: str, topic: str, expected: Fold) -> int:
    """None lost, none twice, none foreign, each key's in order; the number of lines."""
    decode = msgspec.json.Decoder(Line).decode
    seen: dict[str, list[Line]] = defaultdict(list)
    home: dict[str, int] = {}
    for partition, rows in read_all(servers, topic).items():
        for row in rows:
            seen[row.key].append(decode(row.value))
            assert home.setdefault(row.key, partition) == partition, f"key {row.key} lies in two partitions"
    for key in sorted(expected.lines.keys() | seen.keys()):
        assert_same(key, expected.lines.get(key, []), seen.get(key, []))
    return sum(map(len, seen.values()))


def assert_same(key: str, wanted: Sequence[Line], found: Sequence[Line]) -> None:
    if list(wanted) == list(found):
        return
    known, ids = {line.id for line in wanted}, [line.id for line in found]
    lost, twice = known - set(ids), len(ids) - len(set(ids))
    foreign = sum(one not in known for one in ids)
    first = next((pair for pair in zip(wanted, found, strict=False) if pair[0] != pair[1]), None)
    raise AssertionError(
        f"key {key}: {len(wanted)} lines expected, {len(found)} found; {len(lost)} lost, {twice} twice, {foreign} "
        f"foreign; first difference {first}"
    )


class Snapshots:
    """Restores a service's partitions as a new owner would, but fences no owner and joins no group."""

    def __init__(self, servers: str, names: Names) -> None:
        self._settings = Settings(kafka=KafkaSettings(bootstrap_servers=servers))
        self._admin = Admin(self._settings, names.group)
        self.names = names
        self.notes: list[tuple[str, dict[str, object]]] = []
        #: stores that full snapshots are read from
        self.roots: tuple[str, ...] = ()

    def restored(self, partition: int) -> Restored:
        """:raises StateRefused: as a worker would."""
        facts = self._admin.describe([self.names.input, self.names.changelog, self.names.snapshot])
        ids = {name: fact.id for name, fact in facts.items() if fact is not None}
        given = facts[self.names.input]
        assert given is not None
        place = Place(self.names, partition, given.partitions, ids, roots=self.roots)
        group = f"{self.names.group}-{uuid.uuid4().hex[:6]}"
        reader = KafkaReader(self._settings, group, self._admin, lambda: False, time.monotonic)
        try:
            return restore(reader, place, _new_state, lambda *note: self.notes.append(note), time.monotonic)
        finally:
            reader.close()

    def check(self, expected: Fold) -> None:
        """State, position, digest of the state, digest in the mark: each as the fold says."""
        for partition, totals in expected.totals.items():
            restored = self.restored(partition)
            where = f"{self.names.group} partition {partition}"
            position = restored.commit_record.positions[self.names.input]
            assert position == expected.ends[partition], f"{where}: position {position}"
            assert restored.position == position, f"{where}: state of {restored.position}"
            stored = restored.state.tables["totals"].stored
            held = {key: msgspec.msgpack.decode(value, type=Total) for key, value in stored.items()}
            assert held == totals, f"{where}: state differs"
            wanted = digest_of(totals)
            assert show(restored.commit_record.digest) == wanted, f"{where}: the mark's digest differs"
            assert show(restored.state.digest) == wanted, f"{where}: the state's digest differs"


def _new_state() -> State:
    return State([bind(Tally.totals)])


class Group:
    """The consumer group as an outsider sees it; never a member.

    Offsets are asked of a consumer: the AdminClient crashes when the coordinator has moved
    (docs/explanation/assumptions.md).
    """

    def __init__(self, servers: str, group: str) -> None:
        common: dict[str, Any] = {"bootstrap.servers": servers, **PATIENT}
        self._group, self._admin = group, AdminClient(common)
        self._consumer = Consumer({**common, "group.id": group, "enable.auto.commit": False})

    def positions(self, topic: str) -> dict[int, int]:
        """Committed offsets; of a transaction that is open it waits for the end."""
        partitions = sorted(self._consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        found = self._consumer.committed([TopicPartition(topic, partition) for partition in partitions], 30)
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def members(self) -> list[Any]:
        return list(self._admin.describe_consumer_groups([self._group])[self._group].result(30).members)
