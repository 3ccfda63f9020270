"""Brokers for tests. Where no broker can run the test is skipped, but fails in CI."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from statehold.dev import Cluster, JarsUnavailable, JavaMissing


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
