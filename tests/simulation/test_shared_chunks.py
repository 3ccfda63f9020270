"""Random schedules of faults, kills and rebalances with full snapshots that share chunks, in Kafka and in a store."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from tests.simulation.scenarios import LONG, SMALL, Book, Size, made, verified, verify_book

from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Manifest
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import shrink, timeline
from statehold.testing.simulation.simulation import InputRecord, RunResult, Scenario, Simulation, run
from statehold.testing.simulation.store import SIMULATED

SEEDS, MORE = 5, 200
#: full snapshots that were whole, and that shared chunks
seen: Counter[bool] = Counter()


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()


def verify_book_and_chunks(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Also rule C6: a commit record names no two full snapshots that share chunks."""
    verify_book(inputs, outcome)
    for log in outcome.kafka.topics[outcome.names.snapshot].logs:
        for message in log.committed():
            if frame.kind_of(message.value()) == b"F":
                manifest = records.unpack(message.value())
                assert isinstance(manifest, Manifest)
                seen[manifest.shared > 0] += 1
    for log in outcome.kafka.topics[outcome.names.changelog].logs:
        for message in log.committed():
            record = records.unpack(message.value())
            lows = [ref.low for ref in getattr(record, "full_snapshots", ())]
            assert len(set(lows)) == len(lows), lows


def scenario(size: Size, where: str, share: int) -> Scenario:
    inputs = made(61, size)
    snapshot = replace(SMALL.snapshot, full_store=where, share=share, keep=2, full_interval=1.0, full_bytes=65_536)
    return Scenario(
        Book,
        inputs,
        replace(SMALL, snapshot=snapshot),
        size.partitions,
        name=f"shared chunks{size.name}, {where}",
        verify=partial(verified, verify_book_and_chunks, inputs),
        events={"compact": Simulation.compact},
    )


def check(seed: int) -> None:
    size = replace(LONG, records=60, seconds=16.0)  # so that an owner takes several full snapshots
    report = run(scenario(size, ("kafka", SIMULATED)[seed % 2], 1 + seed % 3), Schedule.random(seed))
    if report.violation is not None:
        pytest.fail(f"seed {seed}, {report.scenario.name}, shrunk:\n{timeline(shrink(report))}", pytrace=False)


def test_schedules_with_shared_chunks() -> None:
    seen.clear()
    for seed in range(SEEDS):
        check(seed)
    assert min(seen[False], seen[True]) > 5, seen


@pytest.mark.slow
@pytest.mark.long
def test_more_schedules_with_shared_chunks() -> None:
    for seed in range(SEEDS, MORE):
        check(seed)
        gc.collect()
