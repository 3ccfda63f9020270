"""Runs statehold, Kafka Streams and quixstreams on the same small inputs, and returns what each has sent.

A scenario has a partition of its own, because each framework keeps the time of each partition apart.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from benchmarks import kafka
from benchmarks.contender import Running, new_job
from benchmarks.peers.rounds import CONTENDERS
from benchmarks.peers.workloads import Item, Workload
from confluent_kafka import Producer

_SECONDS = 90.0


class Filled(NamedTuple):
    """The input topics of some scenarios."""

    bootstrap: str
    work: Workload
    topics: tuple[str, ...]
    scenarios: Mapping[str, Sequence[Item]]


def fill(bootstrap: str, work: Workload, scenarios: Mapping[str, Sequence[Item]]) -> Filled:
    """Produce the records, each scenario into its own partition; a value None is a null value."""
    name = uuid.uuid4().hex[:8]
    topics = tuple(f"{topic}-{name}" for topic in work.inputs)
    for topic in topics:
        kafka.create(bootstrap, topic, len(scenarios), message_timestamp_type="CreateTime")
    producer, encode = Producer({"bootstrap.servers": bootstrap}), msgspec.json.Encoder().encode
    for partition, items in enumerate(scenarios.values()):
        for item in items:
            value = None if item.value is None else encode(item.value)
            producer.produce(topics[item.input], value, item.key.encode(), partition, timestamp=item.at)
    assert producer.flush(30.0) == 0
    return Filled(bootstrap, work, topics, scenarios)


def outputs(filled: Filled, name: str, *, rest: float = 1.5, **more: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return the outputs of a contender by scenario, in their order.

    `rest`: seconds for which it runs after it has committed all records. A key is `scenario/key`.
    """
    bootstrap, partitions = filled.bootstrap, len(filled.scenarios)
    target = kafka.create(bootstrap, f"outputs-{uuid.uuid4().hex[:8]}", 1)
    records = sum(map(len, filled.scenarios.values()))
    job = new_job(bootstrap, records, "", target, work=filled.work.name, inputs=filled.topics)
    running = Running(CONTENDERS[name], job | filled.work.settings | more)
    committed = [kafka.Committed(bootstrap, str(job["group"]), topic, partitions) for topic in filled.topics]
    deadline = time.monotonic() + _SECONDS
    while sum(each.total() for each in committed) < records:
        assert running.alive(), f"{name} has ended:\n{running.said(20)}"
        assert time.monotonic() < deadline, f"{name} has not committed all inputs:\n{running.said(20)}"
        time.sleep(0.2)
    time.sleep(rest)
    running.stop()
    found: dict[str, list[tuple[Any, ...]]] = {scenario: [] for scenario in filled.scenarios}
    decode, fields = msgspec.json.Decoder(filled.work.output).decode, msgspec.structs.astuple
    for message in kafka.records_of(bootstrap, target):
        scenario, _, key = (message.key() or b"").decode().partition("/")
        found[scenario].append((key, *fields(decode(message.value() or b""))))
    return found
