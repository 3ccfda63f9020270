"""A service with two inputs on a real broker: order, kills, a silent input, inputs that do not fit."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from tests.support import verify
from tests.support.apps.chained import Link, chained, following
from tests.support.apps.tally import Event
from tests.support.local_service import Local
from tests.support.processes import Process, await_true
from tests.support.stage import Feeder, Stage, StageFactory
from tests.system.test_topology import delete

from statehold import Service
from statehold.admin.repair import repair as repairing
from statehold.admin.repair.positions import AcceptGap
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.errors import (
    InputsChanged,
    PartitionCountChanged,
    RetentionGap,
    ToolRefused,
    TopicMismatch,
    TopicMissing,
    TopicReplaced,
)
from statehold.ops.reports.lag import Lags
from statehold.snapshot.state_replacement import ReplacementReason

pytestmark = pytest.mark.kafka

SHORT = {"STATEHOLD_COMMIT__MAX_RECORDS": "150"}
#: so that a kill leaves a gap, which the next owner has to handle in the same order
GAPS = {**SHORT, "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "30"}


class ChainedProcess(Process):
    command = ("-m", "tests.support.apps.chained")


class Pair:
    """A stage with a second input."""

    def __init__(self, stage: Stage, suffix: str = "b") -> None:
        self.stage, self.second = stage, f"{stage.names.input}-{suffix}"
        self.names = Names(stage.names.service, stage.names.input, stage.names.namespace, (self.second,))
        self.feeders = {topic: Feeder(stage.servers, topic) for topic in self.names.inputs}
        #: an hour ago: brokers accept no timestamps of the future, and delete old records
        self.begin = int((time.time() - 3600) * 1000)

    def create_topics(self, **settings: str) -> Pair:
        topics = ServiceTopics(self.stage.settings(**settings), self.names, [self.stage.output])
        findings = topics.create("beginning", partitions=self.stage.partitions)
        assert all(finding.good for finding in findings), findings
        return self

    def process(self, name: str, **more: str) -> Process:
        environment = self.stage.environment(PROBE_SECOND=self.second, **more)
        return self.stage.processes.setdefault(name, ChainedProcess(name, self.stage.directory, environment))

    def service(self, **more: str) -> Service:
        """The service inside this process, not started."""
        handler = chained(self.names.input, self.second, self.stage.output)
        return Service(
            self.names.service, inputs=self.names.inputs, handler=handler, settings=self.stage.settings(**more)
        )

    def outputs_of(self, topic: str) -> int:
        """Return how many records of an input have an output."""
        return sum(each.topic == topic for links in self.links().values() for each in links)

    def produce(self, topic: str, times: list[int], partition: int = 0) -> None:
        """Write records with these timestamps, in milliseconds after the start of the test's time."""
        settings = {"bootstrap.servers": self.stage.servers, "linger.ms": 5, "queue.buffering.max.messages": 2_000_000}
        producer, refused = Producer(settings), list[object]()
        for number, moment in enumerate(times):
            value = b'{"id":%d,"amount":%d}' % (number, number % 97)
            producer.produce(
                topic,
                value,
                b"k",
                partition,
                timestamp=self.begin + moment,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert (producer.flush(60), refused) == (0, [])
        self.feeders[topic].fed += len(times)

    @property
    def fed(self) -> int:
        return sum(feeder.fed for feeder in self.feeders.values())

    def handled(self) -> int:
        """Return how many records of both inputs have committed."""
        return sum(max(0, offset) for topic in self.names.inputs for offset in self._positions(topic).values())

    def has_handled(self, count: int) -> bool:
        return self.handled() >= count

    def _positions(self, topic: str) -> dict[int, int]:
        return self.stage.group.positions(topic)

    def await_all(self, seconds: float = 120) -> None:
        await_true(lambda: self.handled() >= self.fed, f"{self.fed} records committed", seconds)

    def links(self) -> dict[int, list[Link]]:
        """Return the outputs by the input partition, in their order."""
        found: dict[int, list[Link]] = defaultdict(list)
        for rows in verify.read_all(self.stage.servers, self.stage.output).values():
            for row in rows:
                link = msgspec.json.decode(row.value, type=Link)
                found[link.partition].append(link)
        return found

    def verify(self) -> dict[int, list[Link]]:
        """Each record once, each input in its order, each link made of the one before; return the links."""
        found, ends = self.links(), {}
        for topic in self.names.inputs:
            rows = verify.read_all(self.stage.servers, topic)
            ends[topic] = {partition: [(r.offset, event(r).amount) for r in each] for partition, each in rows.items()}
        for partition in range(self.stage.partitions):
            link, amounts = 1, {topic: iter(ends[topic].get(partition, [])) for topic in self.names.inputs}
            for each in found[partition]:
                offset, amount = next(amounts[each.topic])
                link = following(link, each.topic, offset, amount)
                assert (each.offset, each.link) == (offset, link), f"partition {partition}, {each}"
            left = {topic: list(rest) for topic, rest in amounts.items()}
            assert not any(left.values()), f"partition {partition} has not handled {left}"
        return found


def event(row: verify.Row) -> Event:
    return msgspec.json.decode(row.value, type=Event)


def merged(links: list[Link], inputs: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the records in the order of a plain merge by timestamp; of equal ones the first input's."""
    queues = {topic: [each for each in links if each.topic == topic] for topic in inputs}
    for queue in queues.values():
        queue.sort(key=lambda each: each.offset)
    while any(queues.values()):
        topic = min((topic for topic in inputs if queues[topic]), key=lambda topic: queues[topic][0].time)
        each = queues[topic].pop(0)
        yield each.topic, each.offset


@pytest.fixture
def pairs(stages: StageFactory) -> Callable[[int], Pair]:
    return lambda partitions: Pair(stages(partitions))


def test_complete_inputs_are_merged_by_time(pairs: Callable[[int], Pair]) -> None:
    """One input has four times as many records as the other; many timestamps are equal."""
    pair, source = pairs(2).create_topics(), random.Random(11)
    for partition in range(2):
        pair.produce(pair.names.inputs[0], sorted(source.randrange(1, 2000) for _ in range(500)), partition)
        pair.produce(pair.second, sorted(source.randrange(1, 2000) for _ in range(2000)), partition)
    process = pair.process("merged", **SHORT).start()
    process.await_live(0, 1)
    pair.await_all()
    assert process.stop() == 0
    for links in pair.verify().values():
        assert [(each.topic, each.offset) for each in links] == list(merged(links, pair.names.inputs))


@pytest.mark.long
@pytest.mark.parametrize("orders", [("time",), ("arrival", "time")], ids="-".join)
def test_killed_while_both_inputs_flow(pairs: Callable[[int], Pair], orders: tuple[str, ...]) -> None:
    """The gap is handled again in the order of live: else the links would not fit, and the digest would differ.

    The second case starts with another `inputs.order` each time: the setting decides nothing about what was handled.
    """
    pair = pairs(2).create_topics(**GAPS)
    processes = [pair.process(order, **GAPS, STATEHOLD_INPUTS__ORDER=order) for order in orders]
    gaps = 0
    for number in range(4):
        process = processes[number % len(orders)]
        process.start().await_live(0, 1)
        gaps += sum(each["records"] for each in process.events("replayed"))
        reached = pair.handled()
        for topic in random.Random(number).sample(pair.names.inputs, 2):
            pair.feeders[topic].feed(700, 50)
        await_true(partial(pair.has_handled, reached + 600), "600 more records committed")
        process.kill()
    process = processes[-1].start()
    process.await_live(0, 1)
    gaps += sum(each["records"] for each in process.events("replayed"))
    pair.await_all()
    assert process.stop() == 0
    pair.verify()
    assert gaps > 0, "nothing was replayed, so nothing was shown"


def test_lag_counts_every_input(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(1).create_topics()
    pair.produce(pair.names.input, [1, 2, 3])
    pair.produce(pair.second, [1, 2])
    with closing(Lags(pair.stage.settings(), pair.names)) as lags:
        (before,) = lags.now()
        assert (before.records, before.position, before.inputs) == (5, 0, {pair.names.input: 3, pair.second: 2})
        process = pair.process("behind").start()
        process.await_live(0)
        pair.await_all()
        (after,) = lags.now()
        assert (after.records, after.position) == (0, 5)
    assert process.stop() == 0


def test_an_input_without_records_is_not_waited_for(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(1).create_topics()
    process = pair.process("alone").start()
    process.await_live(0)
    pair.feeders[pair.second].feed(300, 10)
    pair.await_all()
    pair.feeders[pair.names.inputs[0]].feed(1, 1)
    pair.await_all()
    assert process.stop() == 0
    pair.verify()


@pytest.mark.parametrize("waiting", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_fast_input_waits_in_kafka_and_not_in_memory(pairs: Callable[[int], Pair], waiting: int) -> None:
    """All these records of one input lie behind the one record of the other that has to come first."""
    pair = pairs(1).create_topics()
    pair.produce(pair.second, list(range(100_000, 100_000 + waiting)))
    settings = {"STATEHOLD_FLOW__HIGH": "2000", "STATEHOLD_FLOW__LOW": "500", "STATEHOLD_INPUTS__IDLE": "3600"}
    process = pair.process("fast", **settings).start()
    process.await_live(0)
    pair.produce(pair.names.inputs[0], [1000])
    await_true(lambda: pair.handled() >= 1, "the record that comes first")
    assert pair.handled() == 1  # the others wait for the next record of the first input
    pair.produce(pair.names.inputs[0], [100_000 + waiting])
    await_true(lambda: pair.handled() >= waiting + 1, "all records before the last one")
    peak = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 400_000, "kilobytes at most, however many wait"
    assert process.stop() == 0


def test_inputs_with_different_numbers_of_partitions_are_rejected(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(2)
    pair.stage.create_by_hand(pair.names.inputs[0], pair.stage.output)
    pair.stage.partitions = 3
    pair.stage.create_by_hand(pair.second)
    pair.stage.partitions = 2
    topics = ServiceTopics(pair.stage.settings(), pair.names, [pair.stage.output])
    findings = {finding.topic: finding.state for finding in topics.create("beginning")}
    assert findings[pair.second] == "has 3 partitions, the first input has 2"
    with pytest.raises(TopicMismatch, match=f"{pair.second} has 3 partitions, {pair.names.input} has 2"):
        pair.service().start()


def test_a_state_of_other_inputs_is_not_continued(pairs: Callable[[int], Pair]) -> None:
    """The code reads one input less, then another second input; with its own ones it continues."""
    pair = pairs(1).create_topics()
    pair.produce(pair.names.input, [1, 2])
    pair.produce(pair.second, [1])
    with Local(pair):
        pair.await_all()
    other = Pair(pair.stage, "other").create_topics()
    other.produce(other.second, [1])
    for stage, inputs in ((pair.stage, other.names.input), (other, ", ".join(other.names.inputs))):
        with Local(stage) as local:
            cause = local.await_failed(0, InputsChanged)
            assert f"built from {', '.join(pair.names.inputs)}, this code reads {inputs}. Nothing was changed" in cause
    pair.produce(pair.second, [3])
    with Local(pair):
        pair.await_all()
    pair.verify()


def test_a_second_input_that_is_deleted_while_live_is_named(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(1).create_topics()
    pair.produce(pair.second, [1, 2])
    with Local(pair, STATEHOLD_SERVICE__TOPOLOGY_INTERVAL="0.5") as local:
        pair.await_all()
        delete(pair.stage, pair.second)
        assert f"topic {pair.second} does not exist any more" in local.await_failed(0, TopicMissing, 120)
    with pytest.raises(TopicMissing, match=f"missing on the cluster: {pair.second}. Nothing was created"):
        pair.service().start()
    assert pair.outputs_of(pair.second) == 2


@pytest.mark.long
def test_strange_timestamps_change_the_order_and_lose_nothing(pairs: Callable[[int], Pair]) -> None:
    """A record of the year 2100 waits for all others; within an input the order stays."""
    pair = pairs(1).create_topics()
    first, second = pair.names.inputs
    anything = {"message.timestamp.after.max.ms": str(2**62), "message.timestamp.before.max.ms": str(2**62)}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in anything.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, second, incremental_configs=entries)
    pair.stage.admin.incremental_alter_configs([resource])[resource].result(30)
    future = 4_102_444_800_000 - pair.begin
    pair.produce(first, [1, 2, 3, 4])
    pair.produce(second, [-pair.begin - 5, -pair.begin + 1, 2, future, 3])
    process = pair.process("strange").start()
    process.await_live(0)
    pair.await_all()
    assert process.stop() == 0
    links = pair.verify()[0]
    assert [(each.topic, each.offset) for each in links] == [
        (second, 0),
        (second, 1),
        (first, 0),
        (first, 1),
        (second, 2),
        (first, 2),
        (first, 3),
        (second, 3),
        (second, 4),
    ]


def test_a_second_input_created_again_while_live_is_another_topic(pairs: Callable[[int], Pair]) -> None:
    """The reader of the input shows it: no monitor looks. A start finds it by the commit record."""
    pair = pairs(1).create_topics()
    pair.produce(pair.names.input, [1])
    pair.produce(pair.second, list(range(100)))
    with Local(pair, STATEHOLD_SERVICE__TOPOLOGY_INTERVAL="3600") as local:
        pair.await_all()
        delete(pair.stage, pair.second)
        pair.stage.create_by_hand(pair.second)
        pair.produce(pair.second, list(range(1000)))  # longer than the old one: no offset is out of range
        cause = local.await_failed(0, TopicReplaced, 120)
        assert cause.startswith(f"{pair.second}[0]@100: ")
        assert "No record of the new topic was processed" in cause
    with Local(pair) as local:
        cause = local.await_failed(0, TopicReplaced)
        assert f"topic {pair.second} was deleted and created again" in cause
        assert "statehold repair accept-gap" in cause
    assert (pair.outputs_of(pair.names.input), pair.outputs_of(pair.second)) == (1, 100)
    handler = chained(pair.names.input, pair.second, pair.stage.output)
    repaired = partial(repairing.run, pair.stage.settings(), pair.names, handler, act=True)
    reason = ReplacementReason(tool="test", who="ann", why="ticket 9")
    with pytest.raises(ToolRefused, match=f"--to end, or --to {pair.second}:0=OFFSET"):
        repaired(AcceptGap(), reason)
    repaired(AcceptGap("beginning"), reason)
    with Local(pair):
        await_true(lambda: pair.has_handled(1 + 1000), "the records of the new topic")
    assert (pair.outputs_of(pair.names.input), pair.outputs_of(pair.second)) == (1, 1100)


def test_a_second_input_that_retention_has_emptied_stops_the_partition(pairs: Callable[[int], Pair]) -> None:
    """Deleted while the process was frozen, so that its reader finds the gap, and found again by the next start.

    An answer to a fetch has one batch, so the one that the broker may hold at the freeze cannot have all records.
    """
    pair = pairs(1).create_topics()
    process = pair.process("emptied", STATEHOLD_KAFKA__EXTRA__FETCH_MESSAGE_MAX_BYTES="1", **SHORT).start()
    process.await_live(0)
    pair.produce(pair.second, [1, 2])
    pair.await_all()
    process.signal(signal.SIGSTOP)
    pair.produce(pair.second, [3])  # the answer to a fetch that the broker holds may have it
    pair.produce(pair.second, [4, 5])
    pair.stage.delete_records(pair.second, 0)
    process.signal(signal.SIGCONT)
    event = process.await_event("failed")
    assert event["error"] == "RetentionGap"
    assert event["cause"].startswith((f"{pair.second}[0]@2: ", f"{pair.second}[0]@3: "))
    process.kill()
    with Local(pair) as local:
        assert local.await_failed(0, RetentionGap).startswith(f"{pair.second}[0]@")
    assert pair.outputs_of(pair.second) in (2, 3)


def test_a_second_input_that_grows_while_live_stops_the_service(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(2).create_topics()
    pair.produce(pair.second, [1, 2, 3], 1)
    with Local(pair, STATEHOLD_SERVICE__TOPOLOGY_INTERVAL="0.5") as local:
        pair.await_all()
        pair.stage.admin.create_partitions([NewPartitions(pair.second, 3)])[pair.second].result(30)
        for partition in (0, 1):
            cause = local.await_failed(partition, PartitionCountChanged, 120)
            assert f"{pair.second} has 3 partitions, it had 2" in cause
    assert pair.outputs_of(pair.second) == 3
    with pytest.raises(TopicMismatch, match=f"{pair.second} has 3 partitions, {pair.names.input} has 2"):
        pair.service().start()
