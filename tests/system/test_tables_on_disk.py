"""A service with its tables on disk: kills at and between writes, a damaged file, a lost directory, a full disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from tests.support.desk import TOKEN, ask
from tests.support.local_service import Local
from tests.support.processes import ROOT, Process, await_true
from tests.support.stage import Stage, StageFactory

from statehold.ops.http.server import OpsServer

pytestmark = pytest.mark.kafka

SMALL = {"STATEHOLD_COMMIT__MAX_RECORDS": "50"}


def on_disk(directory: Path, rows: int = 0, **more: str) -> dict[str, str]:
    """`rows` wait before they are written; without them each delta is."""
    state = {"STATEHOLD_STATE__STORAGE": "disk", "STATEHOLD_STATE__DIR": str(directory)}
    return {**state, "PROBE_ROWS_THAT_WAIT": str(rows), **SMALL, **more}


def starts(process: Process) -> list[bool]:
    return [bool(event["from_files"]) for event in process.events("restored")]


def verified(stage: Stage, directory: Path) -> tuple[int, list[bool]]:
    """Return the exit code of `snapshot verify --local`, and which directories are good."""
    command = ["-m", "statehold.ops.cli.entry", "snapshot", "verify", "tests.support.apps.served:service", "--local"]
    done = subprocess.run(
        [sys.executable, *command, "--json"],
        env=os.environ | stage.environment(**on_disk(directory), PROBE_COMMAND="1"),
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, [each["good"] for each in json.loads(done.stdout)]


@pytest.mark.parametrize(
    "moment", [pytest.param("before", marks=pytest.mark.long), "inside", pytest.param("after", marks=pytest.mark.long)]
)
def test_a_kill_at_a_write(stages: StageFactory, moment: str) -> None:
    stage = stages(1).create_topics()
    point = stage.directory / "kill"
    settings = on_disk(stage.directory / "state", PROBE_KILL_FILE=str(point))
    process = stage.process("a", **settings).await_live(0)
    stage.feed(300)
    stage.await_all()
    process.kill()
    point.write_text(f"{moment} 4", encoding="ascii")
    process.start().await_live(0)
    assert starts(process) == [True]
    stage.feed(1000)
    process.await_that(lambda: not point.exists(), "the write")
    await_true(lambda: not process.running, "the kill")
    process.start().await_live(0)
    assert starts(process) == [True]
    stage.feed(200)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()


def test_a_clean_stop_leaves_no_delta_to_read(stages: StageFactory) -> None:
    """Unlike a kill, although no write was due."""
    stage = stages(1).create_topics()
    process = stage.process("a", **on_disk(stage.directory / "state", rows=100_000)).await_live(0)
    stage.feed(500)
    stage.await_all()
    process.kill()
    process.start().await_live(0)
    stage.feed(500)
    stage.await_all()
    assert process.stop() == 0
    process.start().await_live(0)
    restored = process.events("restored")
    assert [bool(event["from_files"]) for event in restored] == [True]
    assert restored[-1]["deltas"] == 0
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_kills_at_random_between_two_processes_with_one_directory(stages: StageFactory, seed: int) -> None:
    """Each partition goes from one to the other: the files of its last owner there are older, or another's."""
    stage = stages(2).create_topics()
    rng = random.Random(seed)
    directory = stage.directory / "state"
    pair = [stage.process(name, **on_disk(directory, rows=300)) for name in ("a", "b")]
    for _ in range(4):
        victim = rng.choice(pair)
        victim.await_that(victim.live, "a live partition")
        stage.feed(2000)
        time.sleep(rng.uniform(0, 0.5))  # the random moment itself; nothing is waited for
        victim.kill()
        victim.start()
    stage.await_all()
    for process in pair:
        process.await_event("starting")
        assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_damaged_lost_and_older_files(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    directory = stage.directory / "state"
    process = stage.process("a", **on_disk(directory)).await_live(0)
    stage.feed(2000)
    stage.await_all()
    process.kill()
    (data,) = directory.glob("*/0/data.mdb")
    older = data.read_bytes()
    assert verified(stage, directory) == (0, [True])

    data.write_bytes(older[: len(older) // 2])
    assert verified(stage, directory) == (1, [False])
    process.start().await_live(0)
    assert starts(process) == [False]
    assert process.events("local_store_dropped")
    stage.feed(500)
    stage.await_all()
    process.kill()

    shutil.rmtree(directory)
    process.start().await_live(0)
    assert starts(process) == [False]
    stage.feed(500)
    stage.await_all()
    process.kill()

    data.write_bytes(older)  # as a restored image of the disk
    process.start().await_live(0)
    assert starts(process) == [True]
    stage.feed(500)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_a_scrub_finds_a_lost_row(stages: StageFactory) -> None:
    """Another program has deleted a row: no start reads it, so the service goes live from the files."""
    stage = stages(1).create_topics()
    directory = stage.directory / "state"
    process = stage.process("a", **on_disk(directory, STATEHOLD_STATE__SCRUB="1000")).await_live(0)
    stage.feed(500)
    stage.await_all()
    process.kill()
    (data,) = directory.glob("*/0/data.mdb")
    with lmdb.open(str(data.parent), max_dbs=20, map_size=1 << 30) as files:
        totals = files.open_db(b"t.totals", create=False)
        with files.begin(write=True) as writer:
            place, row = next(iter(writer.cursor(totals)))
            writer.delete(place, db=totals)
            writer.put(place + b"0", row, db=totals)  # so the number of rows stays
    assert verified(stage, directory) == (1, [False])
    process.start()
    failed = process.await_event("failed")
    assert failed["error"] == "LocalStoreFailed"
    assert "a scrub has read the files again" in failed["cause"]
    process.await_that(lambda: starts(process) == [True, False], "a restore from Kafka")
    process.await_event("local_store_scrubbed")
    stage.feed(500)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_a_replica_on_disk_takes_over(stages: StageFactory) -> None:
    """Both instances share one directory; the killed one comes back, and keeps the replica from its old files."""
    stage = stages(1).create_topics()
    settings = on_disk(stage.directory / "state", STATEHOLD_GROUP__STANDBYS="1")
    first = stage.process("a", **settings).await_live(0)
    second = stage.process("b", **settings)
    second.await_event("standby_ready")
    stage.feed(3000)
    stage.await_all()
    first.kill()
    second.await_live(0)
    (restored,) = second.events("restored")
    assert restored["from_standby"] is True
    first.start()
    assert first.await_event("standby_ready")["from_files"] is True
    stage.feed(500)
    stage.await_all()
    second.kill()
    first.await_live(0)
    stage.feed(500)
    stage.await_all()
    assert first.stop() == 0
    stage.verify()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=False)


@pytest.mark.root
def test_a_full_and_a_read_only_disk(stages: StageFactory, small_disk: Path) -> None:
    stage = stages(1).create_topics()
    process = stage.process("a", **on_disk(small_disk)).await_live(0)
    stage.feed(500)
    stage.await_all()
    filler = small_disk / "filler"
    fill(filler)
    stage.feed(3000, keys=3000)
    failed = process.await_event("failed")
    assert failed["error"] == "LocalStoreFailed"
    assert "space" in failed["cause"].lower()
    filler.unlink()
    stage.await_all(120)
    process.kill()

    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    process.start()
    failed = process.await_event("failed")
    assert failed["error"] == "LocalStoreFailed"
    assert "Read-only" in failed["cause"]
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    process.await_live(0)
    stage.feed(500)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


@pytest.mark.long
def test_a_lookup_and_the_keys_by_prefix(stage: Stage) -> None:
    """They are answered from the files while the service commits."""
    settings = on_disk(stage.directory / "state", STATEHOLD_OPS__STATE="on", STATEHOLD_OPS__TOKEN=TOKEN)
    with Local(stage, **settings) as local, OpsServer(local.service) as server:
        local.await_live(0, 1, 2, 3)
        stage.feed(3000, keys=50)
        stage.await_all()
        page = ask(server.url, "/state/totals?prefix=key-1&limit=20", TOKEN).json
        keys = [row["key"] for row in page["rows"]]
        assert keys == sorted(key for key in (f"key-{number}" for number in range(50)) if key.startswith("key-1"))
        for row in page["rows"][:3]:
            found = ask(server.url, f"/state/totals/{row['key']}", TOKEN).json
            assert found["value"] == row["value"]
        counts = ask(server.url, "/state", TOKEN).json["partitions"].values()
        assert sum(each["keys"]["totals"] for each in counts) == 50


@pytest.mark.long
def test_a_limit_of_the_files(stage: Stage) -> None:
    settings = on_disk(stage.directory / "state", STATEHOLD_STATE__DISK_LIMIT="1048576")
    process = stage.process("a", **settings).await_live(0, 1, 2, 3)
    stage.feed(40_000, keys=40_000, padding=100)
    failed = process.await_event("failed")
    assert "state.disk_limit" in failed["cause"]
    process.kill()
    process = stage.process("b", **on_disk(stage.directory / "state")).await_live(0, 1, 2, 3)
    stage.await_all(120)
    assert process.stop() == 0
    stage.verify()
