"""`script/bench commit`: what transactions cost, by how often they commit, against plain idempotent produce.

1 KB records from one producer to one partition, as fast as it takes them: no handler, no statehold. Each transaction
also sends an offset, as a service's does, and comes right after the one before.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import kafka
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

INTERVALS = (0.010, 0.050, 0.100, 0.500)
VALUE = bytes(range(256)) * 4
CLIENT = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    "retry.backoff.ms": 2,
    "delivery.report.only.error": True,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `commit`."""
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> int:
    """Run it."""
    names = ["plain", *(f"{interval * 1000:.0f} ms" for interval in INTERVALS)]
    rates: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {name: [] for name in names}
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        kafka.create(bootstrap, "offsets")
        for number in range(options.rounds):
            for name, interval in zip(names, (None, *INTERVALS), strict=True):
                topic = kafka.create(bootstrap, f"out-{number}-{name.split()[0]}")
                rate, took = _run(bootstrap, topic, interval, options.seconds)
                rates[name].append(rate)
                waits[name] += took
                kafka.delete(bootstrap, topic)
                console.print(f"{name}: {rate:,.0f} records/s")
    _report(names, rates, waits)
    return 0


def _run(bootstrap: str, topic: str, interval: float | None, seconds: float) -> tuple[float, list[float]]:
    """Return (records/s, seconds of each commit: offsets and EndTxn)."""
    extra: dict[str, Any] = {"transactional.id": uuid.uuid4().hex} if interval else {"enable.idempotence": True}
    producer = Producer({"bootstrap.servers": bootstrap, **CLIENT, **extra})
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    producer.list_topics(topic)
    if interval:
        producer.init_transactions()
    sent, took = 0, []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        until = time.perf_counter() + (interval or 0.1)
        if interval:
            producer.begin_transaction()
        while time.perf_counter() < until:
            sent += _hundred(producer, topic)
        if interval:
            ends = time.perf_counter()
            offsets = [TopicPartition("offsets", 0, sent)]
            producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata())
            producer.commit_transaction()
            took.append(time.perf_counter() - ends)
    producer.flush()
    rate = sent / (time.perf_counter() - began)
    member.close()
    return rate, took


def _hundred(producer: Producer, topic: str) -> int:
    for done in range(100):
        try:
            producer.produce(topic, VALUE, None, 0)
        except BufferError:  # full: the broker is the slower one
            producer.poll(0.005)
            return done
    return 100


def _report(names: list[str], rates: dict[str, list[float]], waits: dict[str, list[float]]) -> None:
    figures, rows = Figures("commit"), []
    plain = statistics.median(rates["plain"])
    for name in names:
        rate = statistics.median(rates[name])
        key = name.replace(" ", "_")
        figures.add(key, rate, "records/s", rates[name])
        figures.add(f"{key}/plain", rate / plain, "ratio")
        row = [name, f"{rate:,.0f}", f"{rate * len(VALUE) / 1e6:.0f}", f"{rate / plain:.2f}", "", ""]
        if waits[name]:
            quantiles = statistics.quantiles(waits[name], n=100)
            figures.add(f"{key}.commit_p50", quantiles[49] * 1000, "ms")
            figures.add(f"{key}.commit_p99", quantiles[98] * 1000, "ms")
            row[4:] = [f"{quantiles[49] * 1000:.1f}", f"{quantiles[98] * 1000:.1f}"]
        rows.append(row)
    heads = ["commit every", "records/s", "MB/s", "of plain", "commit p50 ms", "p99 ms"]
    show("1 KB records, transactions with an offset each", heads, rows)
    figures.write()
