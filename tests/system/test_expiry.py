"""Producers that were idle for longer than the brokers remember them (P3, F22): renewed in time, or fenced again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import started
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: a producer that is idle for this number of seconds is forgotten
EXPIRY = 6
FORGETFUL = {
    "transactional.id.expiration.ms": str(EXPIRY * 1000),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": "5000",
    "producer.id.expiration.check.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Cluster]:
    with started(lambda: Cluster(settings=FORGETFUL)) as cluster:
        yield cluster


@pytest.fixture
def stage(forgetful: Cluster, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(forgetful.bootstrap_servers, tmp_path, 2)
    yield made.create_topics()
    made.close()


def idle() -> None:
    """No request shows whether an id has expired, and nothing depends on it but what the test is about."""
    time.sleep(3 * EXPIRY)


def test_an_idle_producer_is_renewed_in_time(stage: Stage) -> None:
    with Local(stage, STATEHOLD_COMMIT__RENEW_AFTER="2") as local:
        stage.feed(200)
        stage.await_all()
        before = {p: stage.snapshots.restored(p).commit_record.n for p in (0, 1)}
        idle()
        assert all(stage.snapshots.restored(p).commit_record.n > n for p, n in before.items()), (
            "no renewal was committed"
        )
        stage.feed(200)
        stage.await_all()
        assert not local.events("fenced_by_new_owner", "failed")
    stage.verify()


def test_an_id_that_has_expired_is_fenced_again_and_the_state_restored(stage: Stage) -> None:
    """The group is asked first: a zombie, whose id expires as well, must not come back by itself (rule T8)."""
    with Local(stage) as local:
        stage.feed(200)
        stage.await_all()
        idle()
        stage.feed(200)
        stage.await_all()
        local.await_live(0, 1)
        assert {event["partition"] for event in local.events("fenced_by_new_owner", "producer_replaced")} == {0, 1}
        assert len(local.events("restored")) + len(local.events("outcome_resolved")) >= 4
        reported = " ".join(str(event["cause"]) for event in local.events("fenced_by_new_owner"))
        assert "commit.renew_after" in reported, "the setting is named"
    stage.verify()


def test_records_deleted_under_a_forgotten_producer_change_nothing(stage: Stage) -> None:
    with Local(stage, STATEHOLD_COMMIT__RENEW_AFTER="2"):
        stage.feed(200)
        stage.await_all()
        idle()  # the outputs' partitions have forgotten it; the coordinator has not
        for partition in read_all(stage.servers, stage.output):
            stage.delete_records(stage.output, partition)
        stage.feed(200)
        stage.await_all()
    rows = [row for each in read_all(stage.servers, stage.output).values() for row in each]
    assert len(rows) == 200
