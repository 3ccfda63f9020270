"""`kill -9` of the whole job between its steps: restores are as before, and the next run finishes (1.5)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.compactions import Looking
from tests.support.stage import Stage

from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.io.source import Session

ROOT = Path(__file__).resolve().parents[2]
#: everything that comes after this step does not happen
JOB = """
import os, signal, sys
from statehold.admin.compaction import Compaction
from statehold.config import load
from statehold.common.names import Names
from statehold.snapshot.spark.io.session import SparkOptions, spark_session

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

servers, service, topic, step, share = sys.argv[1:]
setattr(Compaction, step, die)
settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers, "STATEHOLD_SNAPSHOT__SHARE": share})
with spark_session("killed", SparkOptions()) as spark:
    Compaction(settings, Names(service, topic, ""), keep=1).run(spark)
"""


@pytest.mark.long
@pytest.mark.parametrize("share", ["0", "3"], ids=["whole", "sharing"])
@pytest.mark.parametrize("step", ["publish", "truncate"], ids=["before the manifests", "before the truncation"])
def test_the_next_run_finishes(spark: Session, staged: Stage, step: str, share: str) -> None:
    look = Looking(spark, staged, STATEHOLD_SNAPSHOT__SHARE=share)
    look.feed(2000)
    first = look.compact()
    look.feed(500, keys=50)
    command = [sys.executable, "-c", JOB, staged.servers, staged.names.service, staged.names.input, step, share]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    if step == "publish":
        assert isinstance(look.full_snapshots(0)[-1][1], Chunk), "chunks without a manifest"
        look.check_restores_from(*(each.full for each in first))
    else:
        assert look.start(staged.names.changelog, 0) == 0
        look.check_restores_from_compaction()
    if step == "publish":
        look.feed(500, keys=50)  # another goal, so another whole one: the numbers of the next chunks are taken
    done = look.compact(keep=1)  # waits until the session of the dead one is over
    assert [each.status for each in done] == [{"publish": "compacted", "truncate": "up to date"}[step]] * 2
    assert all(each.truncated and not each.shared for each in done)
    assert look.start(staged.names.changelog, 0) > 0
    look.check_restores_from_compaction()
