"""A process that was killed starts again from its local disk, and from Kafka when that was tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.stage import StageFactory

pytestmark = pytest.mark.kafka


def test_killed_and_started_from_the_disk_then_with_a_damaged_file(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    directory = stage.directory / "local"
    settings = {
        "STATEHOLD_SNAPSHOT__LOCAL_DIR": str(directory),
        "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1",
        "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
    }
    process = stage.process("kept", **settings).await_live(0)
    stage.feed(5000, keys=3000)
    process.await_event("local_full_kept")
    process.kill()

    process.start().await_live(0)
    assert process.events("restored")[-1]["from_disk"] is True
    stage.feed(500, keys=3000)
    stage.await_all()
    process.kill()

    flip_a_bit(next(directory.glob("*.full")))
    process.start().await_live(0)
    assert process.events("restored")[-1]["from_disk"] is None
    assert process.events("local_full_discarded")
    stage.feed(500, keys=3000)
    stage.await_all()
    stage.verify()


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
