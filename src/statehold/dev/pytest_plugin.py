"""Fixtures for tests against a real Kafka; pytest loads this plugin wherever statehold is installed.

    def test_it(kafka):              # one broker, shared by the whole session: use topic names of your own
        Consumer({"bootstrap.servers": kafka.bootstrap_servers, ...})

    def test_faults(kafka_cluster):  # clusters of the test's own, as many as it asks for
        cluster = kafka_cluster(brokers=3)
        cluster.kill(2)

    def test_takeover(simulated_cluster):  # processes of a service in virtual time, without a broker
        cluster = simulated_cluster(Clearing, processes=3)

Tests with a broker are skipped where Java or the broker's jars are missing, but fail when CI=true.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from statehold.dev import Cluster
    from statehold.testing.simulation import SimulatedCluster


class ClusterFactory(Protocol):
    """Starts a cluster that lives until the end of the test; arguments as for `statehold.dev.Cluster`."""

    def __call__(self, brokers: int = 1, **options: Any) -> Cluster: ...


def _start(stack: ExitStack, brokers: int, options: dict[str, Any]) -> Cluster:
    from statehold.dev import Cluster, JarsUnavailable, JavaMissing  # here, because every test run loads this plugin

    try:
        return stack.enter_context(Cluster(brokers, **options))
    except (JavaMissing, JarsUnavailable) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Kafka here: {error}")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """A real one-broker Kafka for the whole session."""
    with ExitStack() as stack:
        yield _start(stack, 1, {})


@pytest.fixture
def kafka_cluster() -> Iterator[ClusterFactory]:
    """A factory of clusters that end with the test."""
    with ExitStack() as stack:

        def start(brokers: int = 1, **options: Any) -> Cluster:
            return _start(stack, brokers, options)

        yield start


@pytest.fixture
def simulated_cluster() -> Iterator[Callable[..., SimulatedCluster]]:
    """A factory of simulated clusters that end with the test; arguments as for `SimulatedCluster`."""
    from statehold.testing.simulation import SimulatedCluster  # here, because every test run loads this plugin

    with ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> SimulatedCluster:
            return stack.enter_context(SimulatedCluster(*arguments, **options))

        yield start
