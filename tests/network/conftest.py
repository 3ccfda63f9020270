"""Brokers on hosts of their own: three of them, as in production, in network namespaces. Needs root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.netns import Net
from tests.support.stage import Stage

from statehold.dev import Cluster
from statehold.dev.properties import Host

StageOf = Callable[[int], Stage]


@pytest.fixture(scope="module")
def far() -> Iterator[tuple[Cluster, Net]]:
    """Three brokers, each reachable over a link of its own."""
    with Net(3) as net:
        hosts = {n: Host(net.address(n), command=("ip", "netns", "exec", net.space(n))) for n in (1, 2, 3)}
        cluster = started(lambda: Cluster(3, settings=SETTINGS, hosts=hosts))
        with cluster:
            yield cluster, net


@pytest.fixture
def cluster(far: tuple[Cluster, Net]) -> Cluster:
    return far[0]


@pytest.fixture
def net(far: tuple[Cluster, Net]) -> Iterator[Net]:
    """Whole at the end, whatever the test did to it."""
    yield far[1]
    far[1].heal()


@pytest.fixture
def stage_of(far: tuple[Cluster, Net], tmp_path: Path) -> Iterator[StageOf]:
    """A factory of stages with that number of partitions, on the three brokers."""
    made: list[Stage] = []

    def stage(partitions: int) -> Stage:
        made.append(Stage(far[0].bootstrap_servers, tmp_path, partitions))
        return made[-1].create_topics()

    yield stage
    for each in made:
        each.close()
