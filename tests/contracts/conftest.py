"""Runs each contract on the simulated Kafka and on real brokers; differences are strict xfails with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.contracts.differences import DIFFERENCES
from tests.contracts.real import Real
from tests.contracts.simulated import Simulated
from tests.contracts.world import HEARTBEAT, SESSION, World
from tests.support.brokers import started
from tests.support.proxy import Proxy

from statehold.common.names import Names
from statehold.dev import Cluster
from statehold.dev.jars import DEFAULT_VERSION
from statehold.errors import KafkaTrouble

#: the oldest supported broker, and one between; in script/test --long
OTHERS = ("3.9.1", "4.1.0")
#: what the brokers do by themselves, often enough for a test
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "group.consumer.session.timeout.ms": str(round(SESSION * 1000)),
    "group.consumer.min.heartbeat.interval.ms": str(round(HEARTBEAT * 1000)),
    "group.consumer.heartbeat.interval.ms": str(round(HEARTBEAT * 1000)),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a contract on every Kafka."""
    if "kafka" in metafunc.fixturenames:
        worlds = [
            pytest.param("simulated"),
            pytest.param("simulated, late markers"),
            pytest.param(DEFAULT_VERSION, marks=pytest.mark.kafka),
            *(pytest.param(version, marks=[pytest.mark.kafka, pytest.mark.long]) for version in OTHERS),
        ]
        metafunc.parametrize(
            "kafka", worlds, indirect=True, ids=["simulated", "late-markers", *map(_id, (DEFAULT_VERSION, *OTHERS))]
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the known differences."""
    for item in items:
        if isinstance(item, pytest.Function) and "kafka" in getattr(item, "fixturenames", ()):
            name = item.name.replace("kafka-", "")
            for difference in DIFFERENCES:
                if difference.matches(item.originalname, name):
                    item.add_marker(pytest.mark.xfail(strict=True, reason=difference.reason, run=difference.runs))


def _id(version: str) -> str:
    return f"kafka-{version}"


def warm_up(kafka: World) -> None:
    """Have the brokers create their internal topics, for which the first group and the first transaction wait."""
    names = kafka.names()
    kafka.until(lambda: answers(kafka, names), "the first group of the cluster", 60)
    kafka.producer(names).drop()
    kafka.close()


def answers(kafka: World, names: Names) -> bool:
    try:
        return kafka.offsets(names).committed(names.input, 0) is None
    except KafkaTrouble:
        return False


@pytest.fixture(scope="session")
def brokers() -> Iterator[Callable[[str], tuple[str, Proxy]]]:
    """Start the brokers of a version once, behind a proxy."""
    running: dict[str, tuple[str, Proxy]] = {}
    stops: list[Callable[[], None]] = []

    def of(version: str) -> tuple[str, Proxy]:
        if version not in running:
            proxy = Proxy()
            stops.append(proxy.close)
            cluster = started(lambda: Cluster(version=version, advertised={1: proxy.port}, settings=SETTINGS))
            stops.append(cluster.stop)
            proxy.connect(cluster.ports[1])
            running[version] = cluster.bootstrap_servers, proxy
            warm_up(Real(cluster.bootstrap_servers, proxy, version))
        return running[version]

    yield of
    for stop in reversed(stops):
        stop()


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[World]:
    """One of the worlds."""
    if request.param.startswith("simulated"):
        yield Simulated(markers=0.0 if request.param == "simulated" else 0.1)
        return
    servers, proxy = request.getfixturevalue("brokers")(request.param)
    made = Real(servers, proxy, request.param)
    yield made
    made.close()
