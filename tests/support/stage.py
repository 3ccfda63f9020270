"""What a test stands on: a service's names and topics on the shared broker, its input, its processes, its verdict."""

from __future__ import annotations

import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Protocol, Self

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.support import verify
from tests.support.apps.tally import tally
from tests.support.processes import Process, await_true

from statehold import Service
from statehold.admin.topics import REQUIRED, ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.config.settings import Settings

#: a takeover after a kill takes a session timeout: the shortest that the settings allow
FAST = {
    "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
    "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.2",
}
KIP848 = {"STATEHOLD_GROUP__PROTOCOL": "consumer"}


class Stage:
    """Unique names; everything it started is ended by `close`. `of` shares the service's name and input."""

    def __init__(
        self, servers: str, directory: Path, partitions: int = 4, namespace: str = "", of: Stage | None = None
    ) -> None:
        run = uuid.uuid4().hex[:8]
        self.servers, self.directory, self.partitions = servers, directory, partitions
        of_service, of_input = (of.names.service, of.names.input) if of else (f"tally-{run}", f"events-{run}")
        self.names: Names = Names(of_service, of_input, namespace)
        self.output = f"lines-{namespace}{run}"
        self.calls = directory / "calls"
        self.poison = directory / "poison"
        self.hold = directory / "hold"
        self._connect()
        self.snapshots = verify.Snapshots(servers, self.names)
        self.processes: dict[str, Process] = {}

    # Set-up

    def _connect(self) -> None:
        alone = {"bootstrap.servers": self.servers, "allow.auto.create.topics": False, **verify.PATIENT}
        self.admin = AdminClient(alone)
        self.group = verify.Group(self.servers, self.names.group)
        self.feeder = Feeder(self.servers, self.names.input)

    def renew(self) -> None:
        """New clients, in place of those that have forgotten their brokers, as the service's own may have."""
        fed = self.fed
        self._connect()
        self.feeder.fed = fed

    def create_topics(self, start_at: str = "beginning", **settings: str) -> Stage:
        """What `statehold topics create` does, input and output included."""
        topics = ServiceTopics(self.settings(**settings), self.names, [self.output])
        findings = topics.create(start_at, partitions=self.partitions)
        assert all(finding.good for finding in findings), findings
        return self

    def environment(self, **more: str) -> dict[str, str]:
        own = {
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": self.servers,
            "STATEHOLD_SERVICE__NAMESPACE": self.names.namespace,
            "STATEHOLD_SERVICE__STATE_DIR": str(self.directory / "state"),
            "PROBE_NAME": self.names.service,
            "PROBE_INPUT": self.names.input,
            "PROBE_OUTPUT": self.output,
            "PROBE_POISON": str(self.poison),
            "PROBE_HOLD": str(self.hold),
        }
        protocol = KIP848 if more.get("STATEHOLD_GROUP__PROTOCOL") == "consumer" else FAST
        return own | protocol | more

    def settings(self, **more: str) -> Settings:
        environment = self.environment(**more)
        return load(env={key: value for key, value in environment.items() if key.startswith("STATEHOLD_")})

    def create_by_hand(self, *topics: str) -> None:
        """Empty topics, as another tool would make them: no commit record is written."""
        ours = dict.fromkeys((self.names.changelog, self.names.snapshot), REQUIRED)
        new = [NewTopic(topic, self.partitions, config=ours.get(topic, {})) for topic in topics]
        for future in self.admin.create_topics(new).values():
            future.result(30)
        # the broker that answers may learn of them a moment later
        await_true(lambda: set(topics) <= self.admin.list_topics(timeout=30).topics.keys(), f"{topics} listed")

    def delete_records(self, topic: str, partition: int, before: int = -1) -> None:
        """Delete what lies before an offset; -1 is the end."""
        place = TopicPartition(topic, partition, before)
        self.admin.delete_records([place])[place].result(30)

    def process(self, name: str, **more: str) -> Process:
        """Start a process of the service; a name that was used before starts that process again."""
        if name not in self.processes:
            self.processes[name] = Process(name, self.directory, self.environment(**more))
        return self.processes[name].start()

    def service(self, **more: str) -> Service:
        """The service inside this process, not started."""
        handler = tally(self.output, poison_file=self.poison, hold_file=self.hold)
        return Service(self.names.service, input=self.names.input, handler=handler, settings=self.settings(**more))

    def feed(self, count: int, keys: int = 1000, padding: int = 0) -> None:
        """Append `count` events with ids that go on counting; `padding` makes every key so much longer."""
        self.feeder.feed(count, keys, "-" * padding)

    def send(self, value: bytes, partition: int, key: str = "k") -> None:
        self.feeder.send(value, partition, key)

    def count(self, sent: int) -> Stage:
        """Expect this number of the records that were `send` to be handled like those that were fed."""
        self.feeder.fed += sent
        return self

    def load(self, per_second: int) -> Load:
        """Feed steadily, in the background, until the `with` block ends."""
        return Load(self.feeder, per_second)

    @property
    def fed(self) -> int:
        return self.feeder.fed

    # Looking on

    def topics(self) -> set[str]:
        """Every topic of the cluster."""
        return set(self.admin.list_topics(timeout=30).topics)

    def ends(self) -> dict[int, int]:
        """Where the input ends, transaction markers included."""
        spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = [TopicPartition(self.names.input, partition) for partition in range(self.partitions)]
        found = self.admin.list_offsets(dict.fromkeys(places, spec))
        return {place.partition: future.result(30).offset for place, future in found.items()}

    def await_partition(self, partition: int, position: int, seconds: float = 60.0) -> None:
        """Until the group's position of one partition is there."""

        def there() -> bool:
            return self.group.positions(self.names.input).get(partition, 0) >= position

        await_true(there, f"partition {partition} at {position}", seconds)

    def await_progress(self, seconds: float = 120.0) -> None:
        """Wait until every partition has committed again."""
        before: dict[int, int] = {}
        heard: list[object] = [None]

        def moved() -> bool:
            try:
                now = self.group.positions(self.names.input)
            except KafkaException as error:  # the coordinator is moving: ask again
                heard[0] = error
                return False
            heard[0] = now
            if not before:
                before.update(dict.fromkeys(range(self.partitions), 0) | now)
            return all(now.get(partition, 0) > offset for partition, offset in before.items())

        try:
            await_true(moved, "progress on every partition", seconds)
        except AssertionError as error:
            tails = "\n".join(f"--- {process.name}\n{process.tail(12)}" for process in self.processes.values())
            raise AssertionError(f"{error}; from {before}, last heard {heard[0]}, fed {self.fed}\n{tails}") from None

    def position(self) -> int:
        """Input records whose transaction has committed (the input begins at 0 in each partition)."""
        return sum(max(0, offset) for offset in self.group.positions(self.names.input).values())

    def await_position(self, position: int, seconds: float = 120.0) -> None:
        def there() -> bool:
            ended = [process for process in self.processes.values() if process.exit_code not in (None, 0, -9)]
            assert not ended, f"{ended[0].name} ended with {ended[0].exit_code}\n{ended[0].tail()}"
            try:
                return self.position() >= position
            except KafkaException:  # the coordinator is moving: ask again
                return False

        try:
            await_true(there, f"position {position}", seconds)
        except AssertionError as error:
            tails = "\n".join(f"--- {process.name}\n{process.tail(12)}" for process in self.processes.values())
            raise AssertionError(f"{error}, fed {self.fed}\n{tails}") from None

    def await_all(self, seconds: float = 120.0) -> None:
        """Until everything that was fed is committed."""
        self.feeder.flush()
        self.await_position(self.fed, seconds)

    def await_empty_group(self, seconds: float = 30.0) -> None:
        await_true(lambda: not self.group.members(), "no members", seconds)

    def verify(self) -> verify.Fold:
        """Outputs, state, positions and digests against the input; the fold, for more questions."""
        expected = verify.fold(verify.read_all(self.servers, self.names.input))
        assert sum(map(len, expected.lines.values())) == self.fed
        assert verify.check_outputs(self.servers, self.output, expected) == self.fed
        self.snapshots.check(expected)
        committed = self.group.positions(self.names.input)
        for partition, end in expected.ends.items():
            assert committed.get(partition, 0) == end, f"group offset of partition {partition}"
        return expected

    def report(self) -> None:
        """Print the end of each process's log."""
        for name, process in self.processes.items():
            print(f"-- the log of {name} ends with:\n{process.tail(12)}")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.feeder.flush()


class Feeder:
    """Events with ids 0, 1, 2, ... and keys in no order; keys land where Java producers put them."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic, self.fed = topic, 0
        self._random = random.Random(7)
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "enable.idempotence": True,
                **verify.PATIENT,
                "allow.auto.create.topics": False,
            }
        )

    def feed(self, count: int, keys: int, padding: str = "") -> None:
        for number in range(self.fed, self.fed + count):
            key = f"key-{self._random.randrange(keys)}{padding}"
            self._produce(b'{"id":%d,"amount":%d}' % (number, number % 97), key)
        self.fed += count
        self.flush()

    def send(self, value: bytes, partition: int, key: str) -> None:
        self.producer.produce(self._topic, value, key, partition)
        self.flush()

    def flush(self) -> None:
        assert self.producer.flush(120) == 0

    def _produce(self, value: bytes, key: str) -> None:
        while True:
            try:
                self.producer.produce(self._topic, value, key)
                return
            except BufferError:
                self.producer.poll(0.05)


class Load:
    """Feeds in slices of 20 ms on a thread of its own."""

    def __init__(self, feeder: Feeder, per_second: int) -> None:
        self.feeder, self._each = feeder, max(1, per_second // 50)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        began, slices = time.monotonic(), 0
        while not self._done.wait(max(0.0, began + slices * 0.02 - time.monotonic())):
            self.feeder.feed(self._each, 1000)
            slices += 1


class StageFactory(Protocol):
    """Arguments as for `Stage`, without servers and directory."""

    def __call__(self, partitions: int = 4, namespace: str = "", of: Stage | None = None) -> Stage: ...
