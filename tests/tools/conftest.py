"""One recorded run of a small ledger, read by all tests; no test may write to its topics."""

from __future__ import annotations

import pytest
from tests.tools.recorded import Ledger

from statehold.dev import Cluster


@pytest.fixture(scope="session")
def ledger(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Three full snapshots in each of two partitions, and deltas after the last one."""
    made = Ledger(kafka.bootstrap_servers, tmp_path_factory.mktemp("ledger")).create()
    for _ in range(3):
        with made.running():
            made.feed_in_turns(100, 100, 100)
    with made.running(STATEHOLD_SNAPSHOT__ON_STOP="false"):
        made.feed(20, amount=0)
        made.await_handled()
        made.feed_in_turns(25, 25)
    return made
