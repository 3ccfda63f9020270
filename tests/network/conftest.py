"""Brokers on hosts of their own: three of them, as in production, in network namespaces. Needs root."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in sys.path:  # tests.system.* and tests.support.* are imported from the project's root
    sys.path.insert(0, str(ROOT))

from tests.support.netns import Net  # noqa: E402
from tests.system.conftest import SETTINGS, started  # noqa: E402
from tests.system.stage import Stage  # noqa: E402

from holdfast.dev import Cluster  # noqa: E402
from holdfast.dev.properties import Host  # noqa: E402

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
    """A factory of stages with so many partitions, on the three brokers."""
    made: list[Stage] = []

    def stage(partitions: int) -> Stage:
        made.append(Stage(far[0].bootstrap_servers, tmp_path, partitions))
        return made[-1].create_topics()

    yield stage
    for each in made:
        each.close()
