"""One Spark session and one broker for all tests of this folder; each test has topics of its own."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.brokers import require_spark, started
from tests.support.stage import Stage

from statehold.dev import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all that ask for the session or the broker, so that no test forgets it."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
            # PySpark leaves the socket of each collect() to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if "spark_broker" in names:
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def spark_broker() -> Iterator[Cluster]:
    """The broker of this folder."""
    with started(lambda: Cluster(settings={"auto.create.topics.enable": "false"})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(monkeypatch_session: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session on this machine; Python workers import tests.* as well as statehold."""
    from statehold.snapshot.spark.io.session import SparkOptions, spark_session

    monkeypatch_session.setenv("PYTHONPATH", str(ROOT))
    require_spark()
    with spark_session("statehold tests", SparkOptions()) as session:
        yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def monkeypatch_session() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture
def staged(spark_broker: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """A service of two partitions on this folder's broker, topics created, nothing fed."""
    directory = tmp_path / "stage"
    directory.mkdir()
    stage = Stage(spark_broker.bootstrap_servers, directory, 2)
    yield stage.create_topics()
    stage.close()
