"""A chain of three services, each killed at random: its end and all states follow from A's input alone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic
from typing import Any

import pytest
from examples.feeding import Feed
from examples.held import held_by
from examples.proof import Event, compare_events, compare_state, digest
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Arrivals, Progress, Raw, by_key, read_committed
from tests.examples.chain import MODULUS, A, B, C

from statehold import Handler
from statehold.common.names import Names
from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

RECORDS = 40_000
RATE = 2_500.0
PARTITIONS = 3
KILLS = 6
EAGER = ("--set", "group.session_timeout=6", "--set", "commit.max_records=200")
"""Back soon after a kill, and many small transactions, so that kills hit every step of one."""
SERVICES: list[tuple[str, str, str, type[Handler[Any]]]] = [
    ("chain-a", "chain.start", "tests.examples.chain:first", A),
    ("chain-b", "chain.ab", "tests.examples.chain:second", B),
    ("chain-c", "chain.bc", "tests.examples.chain:third", C),
]


def steps(random: Random) -> Iterator[tuple[bytes, bytes]]:
    for number in range(RECORDS):
        account = f"account-{random.randrange(300)}"
        step = {"id": number, "account": account, "amount": random.randrange(-500, 500)}
        yield account.encode(), json.dumps(step).encode()


class Expected:
    """The chain recomputed for one partition: the three streams by account, and the three tables."""

    def __init__(self, records: list[Raw]) -> None:
        self.streams: dict[str, dict[str, list[Event]]] = {"chain.ab": {}, "chain.bc": {}, "chain.end": {}}
        self.tables: dict[str, dict[str, dict[str, Any]]] = {
            "chain-a": {"totals": {}},
            "chain-b": {"peaks": {}},
            "chain-c": {"trails": {}},
        }
        for record in records:
            self._follow(json.loads(record.value))

    def _follow(self, step: Event) -> None:
        account, who = step["account"], {"id": step["id"], "account": step["account"]}
        earlier = self.streams["chain.ab"].get(account, [{"count": 0, "total": 0}])[-1]
        total = earlier["total"] + step["amount"]
        reported = who | {"count": earlier["count"] + 1, "total": total}
        peaks, trails = self.tables["chain-b"]["peaks"], self.tables["chain-c"]["trails"]
        peaks[account] = max(peaks.get(account, 0), total)
        below = peaks[account] - total
        trails[account] = (31 * trails.get(account, 1) + below + step["id"]) % MODULUS
        self.tables["chain-a"]["totals"][account] = reported
        self.streams["chain.ab"].setdefault(account, []).append(reported)
        self.streams["chain.bc"].setdefault(account, []).append(who | {"total": total, "peak": peaks[account]})
        self.streams["chain.end"].setdefault(account, []).append(who | {"below": below, "trail": trails[account]})


@pytest.mark.long
def test_three_services_killed_at_random(
    kafka_cluster: Callable[[], Cluster],
    tmp_path: Path,
    seed: int,
    figure: Callable[[str, float, str], None],
) -> None:
    random = Random(seed)
    servers = kafka_cluster().bootstrap_servers
    for _, _, target, _ in SERVICES:
        statehold(servers, f"topics create {target} --start-at beginning --partitions {PARTITIONS}")
    processes = [ServiceProcess(target, servers, tmp_path, name, *EAGER) for name, _, target, _ in SERVICES]
    feed = Feed(servers, "chain.start", RATE)
    upstream = Thread(target=feed.send, args=(list(steps(random)),))
    try:
        began = monotonic()
        for process in processes:
            process.start()
        upstream.start()
        kill_at_random(servers, processes, random)
        with Arrivals(servers, "chain.end") as arrivals:
            wait_until(lambda: arrivals.count() >= RECORDS, "the end of the chain", 120.0, *processes)
        for process in processes:
            wait_until(lambda: len(process.live()) == PARTITIONS, "all partitions live", 60.0, *processes)  # noqa: B023
        figure("chain of three, six kills", monotonic() - began, "s")
        assert [process.stop() for process in processes] == [0, 0, 0]
    except BaseException:
        print(*(f"--- {process.name}\n{process.tail()}" for process in processes), sep="\n")
        raise
    finally:
        feed.stop()
        upstream.join()
        for process in processes:
            process.kill()
    compare(servers)


def kill_at_random(servers: str, processes: list[ServiceProcess], random: Random) -> None:
    """Each service at least once, in any order, at random points of A's progress; each comes back at once."""
    victims = [*processes, *random.choices(processes, k=KILLS - len(processes))]
    random.shuffle(victims)
    points = sorted(random.randrange(RECORDS // 20, RECORDS * 9 // 10) for _ in victims)
    progress = Progress(servers, "chain-a", "chain.start")
    for victim, point in zip(victims, points, strict=True):
        wait_until(lambda: progress.position() >= point, f"{point} steps", 120.0, *processes)  # noqa: B023
        victim.kill()
        victim.start()


def compare(servers: str) -> None:
    expected = {p: Expected(records) for p, records in read_committed(servers, "chain.start").items()}
    for topic in ("chain.ab", "chain.bc", "chain.end"):
        wanted = {key: events for part in expected.values() for key, events in part.streams[topic].items()}
        found = compare_events(topic, wanted, by_key(read_committed(servers, topic)))
        assert found.ok, found.first
        assert found.seen == RECORDS
    for name, topic, _, handler in SERVICES:
        for partition, held in held_by(servers, Names(name, topic), handler).items():
            tables = expected[partition].tables[name]
            assert [each.first for each in compare_state(tables, held.state)] == [None]
            assert held.digest == digest(tables), (name, partition)
