"""Ten kills at random moments, 200,000 trades, four partitions, two processes: all is right in the end."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic

import pytest
from examples.clearing.app import Clearing
from examples.clearing.feed import records
from examples.clearing.market import trades
from examples.clearing.verify import verify
from examples.feeding import Feed
from examples.held import held_by
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Progress

from statehold.common.names import Names
from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

TARGET = "examples.clearing.app:service"
CONFIG = "examples/clearing/clearing.toml"
RECORDS = 200_000
RATE = 5_000.0
KILLS = 10


def test_ten_kills_lose_nothing_and_double_nothing(
    kafka_cluster: Callable[[], Cluster],
    tmp_path: Path,
    seed: int,
    figure: Callable[[str, float, str], None],
) -> None:
    random, servers = Random(seed), kafka_cluster().bootstrap_servers
    statehold(servers, f"topics create {TARGET} --start-at beginning --partitions 4")
    options = ("--config", CONFIG)
    processes = [ServiceProcess(TARGET, servers, tmp_path, name, *options) for name in ("one", "two")]
    feed = Feed(servers, "trades", RATE)
    market = Thread(target=feed.send, args=(records(trades(RECORDS, seed=seed)),))
    try:
        for process in processes:
            process.start()
        market.start()
        began = monotonic()
        kill_ten_times(servers, processes, random)
        wait_until(lambda: sum(len(each.live()) for each in processes) == 4, "all live", 60.0, *processes)
        figure("200,000 trades, ten kills", monotonic() - began, "s")
        assert [process.stop() for process in processes] == [0, 0]
    except BaseException:
        print(*(f"--- {process.name}\n{process.tail()}" for process in processes), sep="\n")
        raise
    finally:
        feed.stop()
        market.join()
        for process in processes:
            process.kill()
    verdict = verify(servers, held_by(servers, Names("clearing", "trades"), Clearing))
    assert verdict.trades == RECORDS
    assert verdict.ok, "\n".join(verdict.lines())
    assert verdict.digests_equal == 4


def kill_ten_times(servers: str, processes: list[ServiceProcess], random: Random) -> None:
    """Either process, at random points of the progress; each comes back at once."""
    progress = Progress(servers, "clearing", "trades")
    points = sorted(random.randrange(RECORDS // 50, RECORDS * 95 // 100) for _ in range(KILLS))
    for point in (*points, RECORDS):
        wait_until(lambda: progress.position() >= point, f"{point} trades", 120.0, *processes)  # noqa: B023
        if point < RECORDS:
            victim = random.choice(processes)
            victim.kill()
            victim.start()
