"""`commit.max_rate` counts the open transactions of all partitions of a process."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from tests.support.desk import Names, Order, a_desk, await_true, create_topics, feed

from statehold.config.sections.processing import CommitSettings
from statehold.dev import Cluster
from statehold.runtime import wiring

pytestmark = pytest.mark.kafka


def test_the_partitions_of_a_process_share_the_count(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: WeakSet[object] = WeakSet()
    monkeypatch.setattr(wiring, "_OPEN", opened)
    names = Names.new(kafka.bootstrap_servers)
    service = a_desk(names, commit=CommitSettings(interval=10.0))
    create_topics(service)
    with service:
        await_true(lambda: [each["phase"] for each in service.status()["partitions"]] == ["live"] * 2, "both are live")
        feed(names, [Order(f"account-{number}", 1) for number in range(8)])
        await_true(lambda: len(opened) == 2, "each partition has an open transaction, in the one count")
    assert len(opened) == 0, "the stop committed them"
