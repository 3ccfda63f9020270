"""Scenario F28 under SIGKILL: each record exactly once in the outputs or the dead letters, and each key in its order.

The handler fails by data (until it is fixed), by bytes that are no value, and at random, whatever the record. The
verifier reads input, outputs and letters with a consumer of its own and computes the totals again.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.support.apps.dead_letters import dead_letters, later
from tests.support.apps.tally import POISON, Event, Line
from tests.support.processes import Process, await_true
from tests.support.stage import Stage, StageFactory

from statehold import Handler
from statehold.admin.dead_letters import DeadLetters
from statehold.admin.topics import ServiceTopics
from statehold.bound.policies import failure_topics
from statehold.messages.dead_letter import DISCARD, REPLAY, DeadLetter

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: small transactions, so that kills hit every step; a replay after most of them
ENVIRONMENT = {
    "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "1",
    "STATEHOLD_COMMIT__MAX_RECORDS": "200",
    "STATEHOLD_FAILURE__DEAD_ROW": "1000",
    "STATEHOLD_FAILURE__DEAD_PERCENT": "100",
    "PROBE_FLAKY": "0.001",
}


class DeadLettersProcess(Process):
    command = ("-m", "tests.support.apps.dead_letters")


class Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


def read_all(servers: str, topic: str) -> list[Read]:
    """Every committed record of a topic, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"verifier-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[Read] = []
    try:
        left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        until = time.monotonic() + 120
        while left:
            assert time.monotonic() < until, f"{topic}: unfinished {left}"
            message: Any = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                left.discard(message.partition())
                continue
            headers = {name: value or b"" for name, value in message.headers() or ()}
            found.append(Read(message.partition(), message.offset(), message.key(), message.value(), headers))
    finally:
        consumer.close()
    return found


class Books:
    """The contents of the topics, read again."""

    def __init__(self, stage: Stage) -> None:
        self.inputs = {(each.partition, each.offset): each for each in read_all(stage.servers, stage.names.input)}
        decode = msgspec.json.Decoder(Line).decode
        self.lines = [decode(each.value or b"") for each in read_all(stage.servers, stage.output)]
        self.handled = [(line.partition, line.offset) for line in self.lines]
        self.dead_letters: list[tuple[int, int]] = []
        self.settled: dict[tuple[int, int], list[str]] = defaultdict(list)
        for each in read_all(stage.servers, stage.names.dead):
            place = each.partition, int(each.headers["statehold-dead-offset"])
            if "statehold-dead-topic" in each.headers:
                self.dead_letters.append(place)
                given = self.inputs[place]
                assert (each.key, each.value) == (given.key, given.value), f"{place} is not as it was received"
            else:
                self.settled[place].append(msgspec.json.decode(each.headers["statehold-command"])["name"])

    def check(self) -> None:
        assert len(set(self.dead_letters)) == len(self.dead_letters), "a letter is there twice"
        assert len(set(self.handled)) == len(self.handled), "a record was handled twice"
        ends = {place: [name for name in names if name != "dlq-failed-again"] for place, names in self.settled.items()}
        assert all(len(names) <= 1 for names in ends.values()), "a letter was settled twice"
        replayed = {place for place, names in ends.items() if names == ["dlq-replayed"]}
        assert replayed <= set(self.dead_letters)
        assert set(self.handled) & set(self.dead_letters) == replayed, "handled and a letter, and not replayed"
        assert set(self.handled) | set(self.dead_letters) == set(self.inputs), "neither handled nor a letter"
        self._check_order()

    def _check_order(self) -> None:
        """A key's lines are in its order, their totals are those of the lines, and none has overtaken a letter."""
        waiting = {
            place for place in self.dead_letters if not set(self.settled[place]) & {"dlq-replayed", "dlq-discarded"}
        }
        first: dict[tuple[int, bytes | None], int] = {}
        for partition, offset in sorted(waiting):
            first.setdefault((partition, self.inputs[partition, offset].key), offset)
        newest: dict[tuple[int, bytes | None], Line] = {}
        for line in self.lines:
            given = self.inputs[line.partition, line.offset]
            event, key = msgspec.json.decode(given.value or b"", type=Event), (line.partition, given.key)
            assert line.offset < first.get(key, line.offset + 1), f"{key}: {line.offset} has overtaken a letter"
            before = newest.get(key)
            assert before is None or before.offset < line.offset, f"{key}: {line.offset} after {before}"
            total = (before.count + 1, before.sum + event.amount) if before else (1, event.amount)
            assert (line.count, line.sum, line.id) == (*total, event.id), f"{line} after {before}"
            newest[key] = line


def set_up(stage: Stage, kind: type[Handler[Any]]) -> None:
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output, *failure_topics(kind, stage.names)])
    findings = topics.create("beginning", partitions=stage.partitions)
    assert all(finding.good for finding in findings), findings


def start(stage: Stage, name: str, **more: str) -> Process:
    if name not in stage.processes:
        stage.processes[name] = DeadLettersProcess(name, stage.directory, stage.environment(**ENVIRONMENT | more))
    return stage.processes[name].start()


def feed(stage: Stage, rng: random.Random) -> None:
    """Good ones, and among them some that will fail, and some that are no values at all."""
    for _ in range(4):
        stage.feed(500, keys=60)
        bad = msgspec.json.encode(Event(1_000_000 + rng.randrange(1_000_000), POISON))
        for partition in range(stage.partitions):
            stage.send(bad, partition, f"key-{rng.randrange(60)}")
            stage.send(b"no value", partition, f"other-{rng.randrange(9)}")


def garbage(letter: DeadLetter) -> bool:
    return letter.value == b"no value"


def sound(letter: DeadLetter) -> bool:
    return not garbage(letter)


def await_read(stage: Stage) -> None:
    """Until everything that was fed is passed by a mark."""
    ends = stage.ends()
    for partition, end in ends.items():
        stage.await_partition(partition, end, 180)


def test_kills_leave_each_record_once_and_each_key_in_order(stages: StageFactory, seed: int) -> None:
    stage, rng = stages(2), random.Random(seed)
    set_up(stage, dead_letters(stage.output, Path("none"), 0))
    stage.poison.touch()
    pair = [start(stage, name) for name in ("a", "b")]
    pair[0].await_that(lambda: any(process.live() for process in pair), "a live partition")
    for number in range(3):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition", 120)
        feed(stage, rng)
        moment = rng.uniform(0, 1.0)
        time.sleep(moment)  # the random moment itself; nothing is waited for
        victim.kill()
        print(f"seed {seed}, kill {number}: {victim.name} after {moment:.3f} s")
        start(stage, victim.name)
    await_read(stage)
    books = Books(stage)
    books.check()
    assert len(books.dead_letters) > 20
    print(f"{len(books.inputs)} records, {len(books.handled)} handled, {len(books.dead_letters)} letters")

    stage.poison.unlink()
    dead = DeadLetters(stage.settings(), stage.names)
    dead.resolve(DISCARD, (), garbage, "no value", 120)
    for _ in range(2):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition", 120)
        feed(stage, rng)
        dead.resolve(REPLAY, (), sound, "fixed", 0.01)  # sent, and not waited for
        time.sleep(rng.uniform(0, 0.5))  # the random moment itself
        victim.kill()
        start(stage, victim.name)
    await_read(stage)
    Books(stage).check()

    def settled() -> bool:
        """What fails at random may fail again, so ask again."""
        dead.resolve(DISCARD, (), garbage, "no value", 120)
        dead.resolve(REPLAY, (), sound, "fixed", 120)
        return not dead.waiting()

    await_true(settled, "no letter waits", 240)
    books = Books(stage)
    books.check()
    replayed = sum("dlq-replayed" in names for names in books.settled.values())
    again = sum(names.count("dlq-failed-again") for names in books.settled.values())
    print(f"{len(books.inputs)} records, {len(books.dead_letters)} letters, {replayed} replayed, {again} failed again")
    assert [process.stop() for process in pair] == [0, 0]


def test_a_record_retried_later_is_handled_once_across_kills(stages: StageFactory, seed: int) -> None:
    stage, rng = stages(2), random.Random(seed)
    set_up(stage, later(stage.output, 0))
    pair = [start(stage, name, PROBE_LATER="1", PROBE_FLAKY="0.1") for name in ("a", "b")]
    pair[0].await_that(lambda: any(process.live() for process in pair), "a live partition")
    for number in range(4):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition", 120)
        stage.feed(500)
        moment = rng.uniform(0, 4.0)
        time.sleep(moment)  # the random moment itself; nothing is waited for
        victim.kill()
        print(f"seed {seed}, kill {number}: {victim.name} after {moment:.3f} s")
        start(stage, victim.name)
    await_read(stage)
    await_true(lambda: settled_later(stage), "each record once, in the outputs or the letters", 60)
    assert [process.stop() for process in pair] == [0, 0]
    assert settled_later(stage)


def settled_later(stage: Stage) -> bool:
    """Nothing twice, ever; and whether nothing is missing by now."""
    given = {(each.partition, each.offset) for each in read_all(stage.servers, stage.names.input)}
    decode = msgspec.json.Decoder(Line).decode
    lines = [decode(each.value or b"") for each in read_all(stage.servers, stage.output)]
    dead = read_all(stage.servers, stage.names.dead)
    found = [(line.partition, line.offset) for line in lines]
    found += [(each.partition, int(each.headers["statehold-dead-offset"])) for each in dead]
    assert len(set(found)) == len(found), "a record is there twice"
    if set(found) == given:
        print(f"{len(given)} records, {len(dead)} letters")
    return set(found) == given
