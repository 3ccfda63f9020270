"""A broker whose disk is full ends (F30): the service waits, nothing is lost or twice when there is room again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.processes import await_true
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=False)


def test_a_full_disk_under_load(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"
    with started(lambda: Cluster(directory=small_disk / "kafka", settings=SETTINGS)) as cluster:
        stage = Stage(cluster.bootstrap_servers, tmp_path, 2).create_topics()
        process = stage.process("a").await_live(0, 1)
        stage.feed(2000)
        stage.await_all()
        fill(filler)
        stage.feeder.producer.produce(stage.names.input, b'{"id":2000,"amount":1}' + b" " * 300_000, "k", 0)
        stage.count(1)
        await_true(lambda: not cluster.is_alive(1), "the broker has ended", 120)
        assert process.running
        filler.unlink()
        cluster.start(1)
        stage.await_all(180)
        stage.feed(1000)
        stage.await_all(180)
        assert process.stop() == 0
        stage.verify()
        stage.close()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            return
