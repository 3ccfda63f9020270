"""The proofs on the oldest broker that is supported, and on a 4.x one (docs/explanation/reliability.md names both)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import KIP848, Stage

from statehold.dev import Cluster
from statehold.errors import RetentionGap

pytestmark = [pytest.mark.kafka, pytest.mark.long]

OLDEST = "3.9.1"


@pytest.fixture(scope="module", params=[OLDEST, "4.1.0"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    version = request.param
    with started(lambda: Cluster(version=version, settings=SETTINGS)) as made:
        yield made


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(cluster.bootstrap_servers, tmp_path, 2)
    yield made.create_topics()
    made.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kills_and_a_zombie(stage: Stage, cluster: Cluster, protocol: str) -> None:
    """SIGKILL under load three times, then an owner that is frozen until another one has its partitions."""
    group = KIP848 if protocol == "consumer" else {}
    if group and cluster.version == OLDEST:
        pytest.skip("3.9 has the new protocol as a preview only: a member never gets a partition")
    process = stage.process("a", **group).await_live(0, 1)
    with stage.load(500):
        for _ in range(3):
            stage.await_progress()
            process.kill()
            process.start().await_live(0, 1, seconds=120)
        stage.await_progress()
        process.signal(signal.SIGSTOP)
        heir = stage.process("b", **group).await_live(0, 1, seconds=120)
        stage.await_progress()
        process.signal(signal.SIGCONT)
        await_true(lambda: process.live() | heir.live() == {0, 1}, "every partition has an owner", 120)
        stage.await_progress()
    stage.await_all()
    assert process.stop() == heir.stop() == 0
    stage.verify()


def test_a_gap_and_a_clean_restart(stage: Stage) -> None:
    stage.feed(500)
    with Local(stage):
        stage.await_all()
    with Local(stage) as local:
        local.await_live(0, 1)
        stage.feed(500)
        stage.await_all()
    stage.verify()
    stage.feed(200)
    stage.delete_records(stage.names.input, 0, stage.group.positions(stage.names.input)[0] + 5)
    with Local(stage) as local:
        local.await_failed(0, RetentionGap)
        local.await_live(1)
