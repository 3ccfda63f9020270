"""Members join and leave at random under load: exact in the end, nobody without an owner, and what nobody touched does
not pause (scenario F18).
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from types import TracebackType
from typing import Self

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.system.apps.tally import Line
from tests.system.conftest import StageFactory
from tests.system.processes import Process
from tests.system.stage import KIP848, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PARTITIONS, REBALANCES, GUESTS = 12, 20, 2
#: seconds around a rebalance in which its gaps are counted
WINDOW = 4.0
#: how much longer the longest gap of an untouched partition may be than one without rebalances; a partition that
#: pauses for a restore, or until the group is at peace, would be far above it
RATIO = 20.0

Figure = Callable[[str, float, str], None]


class Arrivals:
    """When each input partition's outputs became visible, as an independent reader sees it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)
        #: seconds since 1970, ascending
        self.times: dict[int, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        group = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        consumer = Consumer({"bootstrap.servers": self._stage.servers, "auto.offset.reset": "earliest", **group})
        count = len(consumer.list_topics(self._stage.output, timeout=30).topics[self._stage.output].partitions)
        consumer.assign([TopicPartition(self._stage.output, partition) for partition in range(count)])
        decode = msgspec.json.Decoder(Line).decode
        while not self._done.is_set():
            for message in consumer.consume(1000, 0.02):
                if message.error() is None:
                    self.times[decode(message.value() or b"").partition].append(time.time())
        consumer.close()

    def gap(self, partition: int, begin: float, end: float) -> float:
        """The longest time without an output of this partition."""
        within = [at for at in list(self.times[partition]) if begin <= at <= end]
        edges = [begin, *within, end]
        return max(after - before for before, after in pairwise(edges))


@pytest.mark.parametrize("protocol", [{}, KIP848], ids=["classic", "consumer"])
def test_a_storm_of_rebalances(stages: StageFactory, protocol: dict[str, str], seed: int, figure: Figure) -> None:
    stage, choose = stages(PARTITIONS).create_topics(), random.Random(seed)
    host = stage.process("host", **protocol).await_live(*range(PARTITIONS))
    guests = [stage.process(f"guest-{i}", **protocol) for i in range(GUESTS)]
    for guest in guests:
        guest.await_event("assigned").get("partitions")
    with stage.load(1200), Arrivals(stage) as arrivals:
        stage.await_progress()
        quiet = [quiet_gap(stage, arrivals, host) for _ in range(5)]
        for _ in range(REBALANCES):
            come_or_go(choose.choice(guests))
            stage.await_progress()
        stage.await_progress()
        rebalances = moves(host)
        gaps = sorted(gap for at, untouched in rebalances for gap in untouched_gaps(arrivals, at, untouched))
        usual = max(quiet)
    for guest in guests:
        if guest.running:
            guest.stop()
    stage.await_all(240)
    stage.verify()
    assert gaps, "the host kept nothing"
    p50, p99, worst = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], gaps[-1]
    for name, value in (("quiet.max", usual), ("p50", p50), ("p99", p99), ("max", worst)):
        figure(f"gap.{name}", round(value, 3), "s")
    figure("gap.ratio", round(worst / usual, 2), "")
    print(
        f"seed {seed}: {len(rebalances)} rebalances; gaps of untouched partitions: "
        f"p50 {p50:.3f} p99 {p99:.3f} max {worst:.3f} s"
    )
    print(f"without a rebalance: max {usual:.3f} s; ratio {worst / usual:.1f}")
    assert worst < RATIO * usual


def come_or_go(guest: Process) -> None:
    if guest.running:
        assert guest.stop(120) == 0
    else:
        guest.start().await_event("assigned", seconds=120)


def quiet_gap(stage: Stage, arrivals: Arrivals, host: Process) -> float:
    """The longest gap of any of the host's partitions while nothing moves."""
    begin = time.time()
    while time.time() < begin + WINDOW:
        stage.await_progress()
    return max(arrivals.gap(partition, begin, time.time()) for partition in host.live())


def moves(host: Process) -> list[tuple[float, set[int]]]:
    """When something was assigned to the host or revoked from it, and what it held before and after."""
    held: set[int] = set()
    found: list[tuple[float, set[int]]] = []
    for event in host.events("live", "revoked", "assigned"):
        if event["event"] == "live":
            held.add(event["partition"])
        elif event["partitions"]:
            kept = held - set(event["partitions"])
            found.append((datetime.fromisoformat(event["timestamp"]).timestamp(), kept))
            held = kept
    return [(at, kept) for at, kept in found if kept]


def untouched_gaps(arrivals: Arrivals, at: float, untouched: set[int]) -> list[float]:
    return [
        arrivals.gap(partition, at - 0.5, at + WINDOW)
        for partition in untouched
        if arrivals.times[partition]
        and arrivals.times[partition][0] < at
        and arrivals.times[partition][-1] > at + WINDOW
    ]
