"""Tools that read while the service runs: it continues, and no answer is torn."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.tools.recorded import Ledger

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


def test_the_tools_never_disturb_a_running_service(kafka: Cluster, tmp_path: Path) -> None:
    """It commits all the time, takes a full a second and truncates behind it."""
    ledger = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    done = threading.Event()

    def feed() -> None:
        while not done.wait(0.01):
            ledger.feed(20)

    with ledger.running(STATEHOLD_SNAPSHOT__FULL_INTERVAL="1", STATEHOLD_SNAPSHOT__KEEP="1") as service:
        ledger.feed(100)
        ledger.await_handled()
        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            for _ in range(2):
                (listed,) = ledger.json("snapshot", "list", ledger.target)
                (verified,) = ledger.json("snapshot", "verify", ledger.target)
                history = ledger.json("snapshot", "history", "a7", ledger.target)
                assert listed["trouble"] == ""
                assert (verified["good"], verified["findings"]) == (True, [])
                assert listed["commit_record"]["n"] <= verified["n"]
                written = [each["n"] for each in history]  # the newest transactions need not have written the key
                assert written == sorted(set(written)) != []
        finally:
            done.set()
            feeder.join()
        assert service.status()["partitions"][0]["phase"] == "live"
        assert len(ledger.group.members()) == 1
    assert ledger.commit_records(0)[0]["n"] > 0, "nothing was truncated meanwhile"
