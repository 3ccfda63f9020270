"""A partition whose state would not fit is refused with the numbers; the others live. It comes when there is room."""

from __future__ import annotations

import pytest
from tests.support.desk import Names, Order, a_desk, await_true, create_topics, feed

from statehold.dev import Cluster
from statehold.runtime import wiring

pytestmark = pytest.mark.kafka

MB = 1_000_000


def test_one_partition_is_rejected_and_the_others_run(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names.new(kafka.bootstrap_servers)
    # Two accounts of different partitions; all sizes of one of them are keys of a table of their own.
    with_keys = a_desk(names)
    create_topics(with_keys)
    with with_keys:
        feed(names, [Order("many", number) for number in range(20_000)] + [Order("b", 1), Order("few", 1)])
        feed(names, [Order(f"account-{number}", 1) for number in range(8)])

        def counted() -> list[int]:
            return [each["live"]["commit_record"]["keys"] for each in with_keys.status()["partitions"] if each["live"]]

        await_true(lambda: sum(counted()) >= 20_000 + 2 * 8, "all is counted")
        large, small = sorted(counted(), reverse=True)
        assert large > 10 * small

    allowed = [(4 * MB, "of a test")]
    monkeypatch.setattr(wiring._MEMORY, "used", lambda: 0)
    monkeypatch.setattr(wiring._MEMORY, "limit", lambda: allowed[0])
    with a_desk(names, "two") as service:

        def phases() -> list[str]:
            return sorted(each["phase"] for each in service.status()["partitions"])

        await_true(lambda: phases() == ["failed", "live"], "one is refused, one lives")
        [failed] = [each for each in service.status()["partitions"] if each["phase"] == "failed"]
        assert "the state needs about" in failed["cause"]
        assert "nine tenths of 4 MB (of a test)" in failed["cause"]
        allowed[0] = (400 * MB, "of a test")
        service.retry(failed["partition"])
        await_true(lambda: phases() == ["live", "live"], "there is room")
