"""Full snapshots in a directory and in S3, with a real broker: kills, restores and truncation as with Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.support.hanging import door
from tests.support.processes import await_true
from tests.support.s3 import S3, serving
from tests.support.stage import StageFactory
from tests.support.verify import read_all

from statehold.snapshot.format import frame
from statehold.snapshot.store.by_url import open_store

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serving() as server:
        yield server


@pytest.mark.parametrize("kind", [pytest.param("file", marks=pytest.mark.long), "s3"])
def test_a_process_killed_during_full_snapshots_starts_from_the_store(stages: StageFactory, s3: S3, kind: str) -> None:
    stage = stages(1).create_topics()
    root = f"file://{stage.directory}/fulls" if kind == "file" else s3.bucket()
    stage.snapshots.roots = (root,)
    settings = {
        **s3.environment,
        "STATEHOLD_SNAPSHOT__FULL_STORE": root,
        "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1",
        "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
        "STATEHOLD_SNAPSHOT__KEEP": "1",
    }
    process = stage.process("stored", **settings).await_live(0)
    stage.feed(5000, keys=3000)
    process.await_event("truncated")
    process.kill()

    process.start().await_live(0)
    assert process.events("restored")[-1]["full"] is not None
    stage.feed(500, keys=3000)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()
    assert {frame.kind_of(row.value) for row in read_all(stage.servers, stage.names.snapshot)[0]} == {b"F"}
    assert list(open_store(root).list(f"{stage.names.group}.{stage.names.input}/0"))


def test_a_stop_does_not_wait_for_a_store_that_hangs(stages: StageFactory, s3: S3) -> None:
    """While a restore reads from it: the partition leaves, nothing fails, and the next start reads on."""
    stage, place = stages(1).create_topics(), urlsplit(s3.endpoint)
    with door((str(place.hostname), int(place.port or 0))) as between:
        host, port = between.address
        settings = {
            **s3.environment,
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "STATEHOLD_SNAPSHOT__FULL_STORE": s3.bucket(),
            "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
        }
        process = stage.process("stored", **settings).await_live(0)
        stage.feed(2000, keys=1000)
        stage.await_all()
        assert process.stop() == 0  # with a full

        between.shut()
        process.start().await_event("restoring")
        await_true(between.knocked.is_set, "it asks the store")
        assert process.stop(120) == 0
        assert not process.events("failed", "restored")
        assert process.events("aborted")
    process = stage.process("again", **(settings | s3.environment)).await_live(0)
    assert process.events("restored")[-1]["full"] is not None
    assert process.stop() == 0
    stage.verify()
