"""What a host process has left of a service that has ended."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.desk import Names, a_desk, await_true, create_topics

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the threads")]


def test_no_thread_of_a_client_stays(kafka: Cluster) -> None:
    names = Names.new(kafka.bootstrap_servers)
    create_topics(a_desk(names))
    gc.collect()
    before = clients()
    for _ in range(2):
        live_once(names)
    await_true(lambda: gc.collect() >= 0 and clients() <= before, "the clients' threads are gone")


def live_once(names: Names) -> None:
    service = a_desk(names)
    with service:
        await_true(lambda: [each["phase"] for each in service.status()["partitions"]] == ["live"] * 2, "it is live")


def clients() -> int:
    """Threads of librdkafka."""
    found = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            found += Path(f"/proc/self/task/{thread}/comm").read_text().startswith("rdk:")
    return found
