"""Old and new releases in one group, side by side; the way back until the upgrade is finished, and none after (4.4).

The old release is a wheel of an earlier commit in an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.environments import build_wheel, install, run
from tests.support.processes import Process
from tests.support.stage import Stage, StageFactory
from tests.support.verify import read_all

from statehold.snapshot.format import frame

#: OLD has another package name, other topic names and a dependency that the lock no longer has, so that no group can
#: hold both releases. Name a commit of statehold here once an older release reads an older format.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skip(reason="no release of statehold reads format 1 only"),
]

ROOT = Path(__file__).resolve().parents[2]
#: the last commit that knew format 1 only
OLD = "d5a5168"


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the old wheel."""
    scratch = tmp_path_factory.mktemp("old")
    tree = scratch / "old"
    tree.mkdir()
    archived = subprocess.run(["git", "archive", OLD], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode != 0:
        pytest.skip(f"commit {OLD} is not in this clone: git fetch --unshallow")
    subprocess.run(["tar", "-x"], cwd=tree, input=archived.stdout, check=True)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)  # the wheel is built of what git lists
    wheel = build_wheel(tree, sys.executable, scratch)
    return install(tree, wheel, sys.executable, scratch / "environment", "cli")


def test_an_upgrade_one_process_at_a_time_and_no_way_back_once_it_is_finished(
    stages: StageFactory, old_release: Path
) -> None:
    stage = stages(2)
    create_topics(stage, old_release)
    old = {"PROBE_PYTHON": str(old_release / "python")}
    left = stage.process("old-left", **old)
    right = stage.process("old-right", **old)
    assert formats_of(stage) == {1}
    with stage.load(500):
        share(left, right)
        # Half of the group is new, and both work.
        right.stop()
        new_right = stage.process("new-right")
        share(left, new_right)
        stage.await_progress()
        rejected = finish(stage)
        assert rejected.returncode == 1
        assert "(old-left on " in rejected.stderr
        assert f"which does not read format {frame.NEWEST}. Nothing was changed" in rejected.stderr
        # The way back.
        new_right.stop()
        right.start()
        share(left, right)
        stage.await_progress()
        # All of it is new.
        for process in (right, left):
            process.stop()
        new_right.start()
        new_left = stage.process("new-left")
        share(new_left, new_right)
        stage.await_progress()
        assert formats_of(stage) == {1}
        finished = finish(stage)
        assert finished.returncode == 0, finished.stderr
        assert {each["format"] for each in json.loads(finished.stdout)} == {frame.NEWEST}
        assert formats_of(stage) == {1, frame.NEWEST}
        # No way back: the old release fails before it is live, and says what it met.
        new_left.stop()
        left.start()
        failed = left.await_event("failed")
        assert failed["error"] == "DamagedIncrement"
        assert f"format version {frame.NEWEST}, this statehold reads 1" in failed["cause"]
        assert not left.events("live")
        left.stop()
        new_right.await_live(0, 1)
    stage.await_position(stage.fed + stage.partitions)  # each holds a command, too
    stage.verify()


def create_topics(stage: Stage, programs: Path) -> None:
    """As the old release did it: its first marks are of format 1."""
    names = ["--name", stage.names.service, "--input", stage.names.input, "--output", stage.output]
    where = ["--start-at", "beginning", "--partitions", str(stage.partitions)]
    created = run(str(programs / "statehold"), "topics", "create", *names, *where, cwd=None, **stage.environment())
    assert created.returncode == 0, created.stderr


def finish(stage: Stage) -> subprocess.CompletedProcess[str]:
    names = ["--name", stage.names.service, "--input", stage.names.input, "--json"]
    return run(
        sys.executable, "-m", "statehold.ops.cli.entry", "finish-upgrade", *names, cwd=None, **stage.environment()
    )


def share(one: Process, other: Process) -> None:
    """Each handles one partition."""
    other.await_that(lambda: len(one.live()) == len(other.live()) == 1, "one partition each")


def formats_of(stage: Stage) -> set[int]:
    """The first byte of every record on the changelog topic."""
    return {row.value[0] for rows in read_all(stage.servers, stage.names.changelog).values() for row in rows}
