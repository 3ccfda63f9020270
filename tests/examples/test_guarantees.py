"""docs/explanation/choosing.md: each way to consume is killed at its named point, restarted and its results checked."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.brokers import started
from tests.support.verify import read_all

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 25
FIRST_BATCH = set(range(10))
#: module, point of death, the records that are missing in the end, those that are there twice
DEATHS = [
    ("auto_commit", "in the middle of a batch", {5, 6, 7, 8, 9}, set()),
    ("commit_after", "between the outputs and the offset", set(), FIRST_BATCH),
    ("in_transaction", "before the commit", set(), set()),
    ("in_transaction", "after the commit", set(), set()),
    ("own_store", "before the commit", set(), set()),
    ("own_store", "after the commit", set(), set()),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with started(Cluster) as cluster:
        yield cluster


@pytest.mark.parametrize(("module", "point", "missing", "doubled"), DEATHS)
def test_a_death_shows_what_is_promised(
    broker: Cluster, tmp_path: Path, module: str, point: str, missing: set[int], doubled: set[int]
) -> None:
    servers, run = broker.bootstrap_servers, uuid.uuid4().hex[:8]
    source, sink = f"in-{run}", f"out-{run}"
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(source, 1), NewTopic(sink, 1)]).values():
        future.result(30)
    feeder = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        feeder.produce(source, b"%d" % number, partition=0)
    assert feeder.flush(30) == 0
    target = str(tmp_path / "results.db") if module == "own_store" else sink

    program = f"examples.guarantees.{module}", servers, source, target, f"group-{run}"
    assert ended(*program, "--die-at", point) == 9
    assert ended(*program) == 0

    found = stored(target) if module == "own_store" else published(servers, sink)
    assert {number for number in range(RECORDS) if found[number] == 0} == missing
    assert {number for number in range(RECORDS) if found[number] == 2} == doubled
    assert found.total() == RECORDS - len(missing) + len(doubled)


def ended(*program: str) -> int:
    """Its exit code. One that hangs says where, on standard error."""
    process = subprocess.Popen([sys.executable, "-X", "faulthandler", "-m", *program], cwd=ROOT)
    try:
        return process.wait(120)
    finally:
        process.send_signal(signal.SIGABRT)  # if it has not ended
        process.wait()


def published(servers: str, topic: str) -> Counter[int]:
    """What a plain read_committed consumer sees."""
    return Counter(int(row.value) for rows in read_all(servers, topic).values() for row in rows)


def stored(file: str) -> Counter[int]:
    with sqlite3.connect(file) as database:
        return Counter(int(value) for (value,) in database.execute("select value from results"))
