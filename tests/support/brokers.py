"""Brokers and Spark for tests. Where they cannot run the test is skipped, but fails in CI."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from statehold.dev import Cluster, JarsUnavailable, JavaMissing
from statehold.dev.java import find_spark_java

#: of the broker that most tests share
SETTINGS = {
    "auto.create.topics.enable": "true",
    # The consumer protocol takes its times from the broker: as short as the classic ones of these tests.
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    # A transaction that is open for too long is ended soon after its time, not up to 10 s later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Files with a broken retention are gone soon, so that a gap can be shown.
    "log.segment.delete.delay.ms": "1000",
}


def started(make: Callable[[], Cluster]) -> Cluster:
    """Return a running cluster; without Java or the broker's jars skip the test, but fail in CI."""
    try:
        cluster = make()
        cluster.start()
    except (JavaMissing, JarsUnavailable) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Kafka here: {error}")
    return cluster


def require_spark() -> None:
    """Skip the test where no Java runs Spark, but fail in CI."""
    try:
        find_spark_java()
    except JavaMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Spark here: {error}")
