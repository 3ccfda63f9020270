"""One broker for all system tests of a run, with topic auto-creation on, so that nothing may rely on it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.proxy import Proxy
from tests.support.stage import Stage, StageFactory

from statehold.dev import Cluster


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    with started(lambda: Cluster(settings=SETTINGS)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Cluster, Proxy]]:
    """A broker whose clients all pass the proxy."""
    with Proxy() as proxy, started(lambda: Cluster(settings=SETTINGS, advertised={1: proxy.port})) as cluster:
        proxy.connect(cluster.ports[1])
        yield cluster, proxy


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, so that what ends later can report it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def stages(broker: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StageFactory]:
    """A factory of stages, each with a directory and names of its own; after a failure their processes' logs."""
    made: list[Stage] = []

    def stage(partitions: int = 4, namespace: str = "", of: Stage | None = None) -> Stage:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Stage(broker.bootstrap_servers, directory, partitions, namespace, of))
        return made[-1]

    yield stage
    for each in made:
        if request.node.stash.get(FAILED, False):
            each.report()
        each.close()


@pytest.fixture
def stage(stages: StageFactory) -> Stage:
    """Four partitions, topics created, nothing fed."""
    return stages().create_topics()


@pytest.fixture
def two_partitions(stages: StageFactory) -> Stage:
    return stages(2).create_topics()
