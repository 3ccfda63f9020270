"""Members join and leave at random under load: exact in the end, each partition owned, and those not touched do
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
from tests.support.apps.tally import Line
from tests.support.processes import Process
from tests.support.stage import KIP848, Stage, StageFactory

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PARTITIONS, REBALANCES, GUESTS = 12, 20, 2
#: seconds around a rebalance in which its gaps are counted, and how many such windows without one
BEFORE, AFTER, QUIET = 0.5, 2.5, 7
#: how much longer the longest gap of an untouched partition may be than one without rebalances: processes start and
#: restore meanwhile, on the same cores
RATIO = 10.0

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
        guest.await_event("assigned")
    with stage.load(1200), Arrivals(stage) as arrivals:
        stage.await_progress()
        quiet = sorted(gap for _ in range(QUIET) for gap in quiet_gaps(stage, arrivals, host))
        for _ in range(REBALANCES):
            come_or_go(choose.choice(guests))
            stage.await_progress()
        stage.await_progress()
        gaps = sorted(untouched_gaps(arrivals, host))
    for guest in guests:
        if guest.running:
            guest.stop()
    stage.await_all(240)
    stage.verify()
    assert gaps, "the host kept nothing"
    for name, found in (("quiet", quiet), ("storm", gaps)):
        reported = {"p50": found[len(found) // 2], "p99": found[len(found) * 99 // 100], "max": found[-1]}
        print(f"seed {seed}, {name}: {len(found)} gaps, " + ", ".join(f"{k} {v:.3f} s" for k, v in reported.items()))
        for key, value in reported.items():
            figure(f"gap.{name}.{key}", round(value, 3), "s")
    ratio = gaps[-1] / quiet[-1]
    figure("gap.ratio", round(ratio, 2), "")
    assert ratio < RATIO


def come_or_go(guest: Process) -> None:
    if guest.running:
        assert guest.stop(120) == 0
    else:
        guest.start().await_event("assigned", seconds=120)


def quiet_gaps(stage: Stage, arrivals: Arrivals, host: Process) -> list[float]:
    """The longest gap of each of the host's partitions while nothing moves."""
    begin = time.time()
    while time.time() < begin + BEFORE + AFTER:
        stage.await_progress()
    return [arrivals.gap(partition, begin, begin + BEFORE + AFTER) for partition in host.live()]


def untouched_gaps(arrivals: Arrivals, host: Process) -> list[float]:
    """Around each rebalance that the host heard of, for each partition that was live there all the time."""
    spans: dict[int, list[list[float]]] = defaultdict(list)
    heard: list[float] = []
    for event in host.events("live", "revoked", "assigned"):
        at = datetime.fromisoformat(event["timestamp"]).timestamp()
        if event["event"] == "live":
            spans[event["partition"]].append([at, time.time()])
            continue
        heard.append(at)
        for partition in event["partitions"]:
            if spans[partition]:
                spans[partition][-1][1] = min(at, spans[partition][-1][1])
    return [
        arrivals.gap(partition, at - BEFORE, at + AFTER)
        for at in heard
        for partition, each in spans.items()
        if any(begin < at - BEFORE and at + AFTER < end for begin, end in each)
        and arrivals.times[partition]
        and arrivals.times[partition][0] < at - BEFORE
        and arrivals.times[partition][-1] > at + AFTER
    ]
