"""`script/bench rows`: the time from start to live after a kill, with the rows of a join of two streams as the state.

Orders and fills of one day, 1,000,000 rows together, all of them kept by a join within a day. Each contender has
joined them when SIGKILL ends it at a random moment. After the broker has noticed (the group is empty), further fills
of 500 orders are written. The contender starts without local state, and the time runs from the start of its process
until the first pair is appended to the output. Every pair must be one of these fills with its order.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from confluent_kafka import Message

from benchmarks import kafka
from benchmarks.contender import Running, memory_mb, new_job
from benchmarks.environments import Skipped
from benchmarks.kafka import records_of
from benchmarks.peers import workloads
from benchmarks.peers.joins import MATCH, Fill, Matched
from benchmarks.peers.rounds import CONTENDERS
from benchmarks.peers.workloads import Item
from benchmarks.report import Figures, console, show
from benchmarks.restore import wait_empty
from statehold.dev import Cluster

#: milliseconds that rows stay
_DAY = 86_400_000
_LATER_FILLS = 500
REACH = 0.4


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rows`."""
    parser.add_argument("--records", type=int, default=1_000_000, help="of both inputs")
    parser.add_argument("--only", default="statehold,streams")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the moments of death")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a pair was wrong."""
    console.print(f"{options.records:,} rows, seed {options.seed}")
    rng, right = random.Random(options.seed), True
    live: dict[str, list[float]] = {name: [] for name in options.only.split(",")}
    items = list(MATCH.items(options.records))
    for _ in range(options.rounds):
        for name, seconds in live.items():
            with Cluster(settings={"log.retention.check.interval.ms": "3600000"}) as cluster:
                try:
                    right &= _run_once(cluster.bootstrap_servers, name, items, rng, seconds)
                except Skipped as reason:
                    console.print(f"{name} skipped: {reason}")
    _report(live)
    return 0 if right else 1


def _run_once(bootstrap: str, name: str, items: list[Item], rng: random.Random, live: list[float]) -> bool:
    contender = CONTENDERS[name]
    for topic in MATCH.inputs:
        kafka.create(bootstrap, topic, message_timestamp_type="CreateTime")
    target = kafka.create(bootstrap, "pairs")
    _fill(bootstrap, items)
    settings = MATCH.settings | {"within_ms": _DAY}
    job = new_job(bootstrap, len(items), "", target, work=MATCH.name, inputs=MATCH.inputs, **settings)
    running = Running(contender, job)
    inputs = [kafka.Committed(bootstrap, str(job["group"]), topic, 1) for topic in MATCH.inputs]
    deadline = time.monotonic() + 60 + len(items) / 1_000
    while sum(each.total() for each in inputs) < len(items):
        if not running.alive() or time.monotonic() > deadline:
            console.print(f"[red]{contender.title} did not get through[/red]\n{running.said()}")
            running.stop(kill=True)
            return False
        time.sleep(0.2)
    time.sleep(rng.random() * 3)  # the moment of death
    memory = memory_mb(running.process.pid)
    running.stop(kill=True)
    wait_empty(bootstrap, str(job["group"]))
    before = sum(1 for _ in records_of(bootstrap, target))
    end_before = kafka.Ends(bootstrap, target).stable()
    end, orders = items[-1].at, rng.sample([item for item in items if item.input == 0], _LATER_FILLS)
    fills = [
        Item(1, order.key, end + 2, Fill(f"later-{number}", order.key, 1_000 + number, end + 2))
        for number, order in enumerate(orders)
    ]
    _fill(bootstrap, fills)
    wanted: set[tuple[Any, ...]] = {
        (order.key, fill.value.id, order.value.quantity * fill.value.price)
        for order, fill in zip(orders, fills, strict=True)
    }
    started = time.time()
    running = Running(contender, job | {"prepare": False})  # a new folder: what was on disk is gone
    ends, deadline = kafka.Ends(bootstrap, target), time.monotonic() + 300
    messages: list[Message] = []
    while len(messages) < len(wanted) and running.alive() and time.monotonic() < deadline:
        if ends.stable() > end_before:  # nothing is read before the first pair, because that would delay it
            messages = list(records_of(bootstrap, target))[before:]
        time.sleep(0.2)
    running.stop()
    decode, fields = msgspec.json.Decoder(Matched).decode, msgspec.structs.astuple
    found = [fields(decode(message.value() or b"")) for message in messages]
    if set(found) != wanted or len(found) != len(wanted):
        console.print(f"[red]{contender.title}: {len(found)} pairs, {len(wanted - set(found))} missing[/red]")
        return False
    live.append(messages[0].timestamp()[1] / 1000 - started)
    console.print(
        f"{contender.title}: live after {live[-1]:.2f} s; {len(found)} pairs right, {before:,} before the kill, "
        f"when the process held {memory:.0f} MB"
    )
    return True


def _fill(bootstrap: str, items: Iterable[Item]) -> None:
    workloads.fill(bootstrap, {}, items, MATCH.inputs)


def _report(live: dict[str, list[float]]) -> None:
    figures, rows = Figures("rows"), []
    for name, seconds in live.items():
        if not seconds:
            rows.append([CONTENDERS[name].title, "wrong or skipped"])
            continue
        rows.append([CONTENDERS[name].title, f"{statistics.median(seconds):.2f}"])
        figures.add(f"{name}.live", statistics.median(seconds), "s", seconds)
    show("rows of a join, from the start of the process to the first pair", ["", "live after s"], rows)
    if live.get("statehold") and live.get("streams"):
        ratio = statistics.median(live["statehold"]) / statistics.median(live["streams"])
        figures.add("statehold/streams", ratio, "ratio")
        console.print(f"statehold / Kafka Streams = {ratio:.2f} (at most {REACH})")
    figures.write()
