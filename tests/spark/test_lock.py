"""The lock of a compaction outlives the one who was killed by its session, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.stage import Stage

from statehold.kafka.admin.admin import Admin
from statehold.kafka.tools.compaction_lock import SESSION, CompactionLock

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import os, sys
from statehold.config import load
from statehold.common.names import Names
from statehold.kafka.admin.admin import Admin
from statehold.kafka.tools.compaction_lock import CompactionLock
settings, names = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": sys.argv[1]}), Names(sys.argv[2], sys.argv[3], "")
with CompactionLock(settings, names, Admin(settings, names.group)):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
def test_it_is_free_again_after_a_kill(staged: Stage) -> None:
    names = staged.names
    arguments = [sys.executable, "-c", HOLDER, staged.servers, names.service, names.input]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    killed = time.monotonic()
    with _lock(staged) as lock:  # joining waits for the dead one's session to end
        lock.check()
    assert time.monotonic() - killed > SESSION / 2


def _lock(stage: Stage) -> CompactionLock:
    settings = stage.settings()
    return CompactionLock(settings, stage.names, Admin(settings, stage.names.group))
