"""Kafka is gone for a while: the service waits and says so, or leaves; a stop ends it even then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.local_service import Local
from tests.support.processes import ROOT, Process, await_true
from tests.support.stage import Stage

from statehold.common.exit_codes import Exit
from statehold.dev import Cluster
from statehold.errors import StuckCall
from statehold.kafka.clients import producer

pytestmark = pytest.mark.kafka

STOP_TIMEOUT = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A broker of this module's own: it is killed and frozen."""
    with started(lambda: Cluster(settings=SETTINGS)) as cluster:
        yield cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(cluster.bootstrap_servers, tmp_path, 2)
    yield stage.create_topics()
    stage.close()


class Daemon(Process):
    """The service as an operator runs it."""

    command = ("-m", "statehold.ops.cli.entry", "run", "tests.support.apps.served:service")


def daemon(stage: Stage, name: str, **more: str) -> Daemon:
    made = Daemon(name, stage.directory, stage.environment(STATEHOLD_LOG__FORMAT="json", **more))
    stage.processes[name] = made
    made.start()
    return made


def test_one_service_waits_an_outage_out_and_one_leaves(stage: Stage, cluster: Cluster, tmp_path: Path) -> None:
    other = Stage(cluster.bootstrap_servers, tmp_path / "other", 1)
    other.directory.mkdir()
    other.create_topics()
    with Local(stage) as local:
        leaver = daemon(other, "leaver", STATEHOLD_KAFKA__OUTAGE="10")
        leaver.await_live(0)
        local.await_live(0, 1)
        stage.feed(500)
        stage.await_all()
        cluster.kill(1)
        await_true(lambda: local.events("outage"), "the log reports the outage", 120)
        await_true(lambda: local.service.status()["outage"], "the status reports it")
        await_true(lambda: not leaver.running, "the other one leaves", 120)
        assert leaver.exit_code == Exit.OUTAGE
        assert "kafka.outage" in leaver.events("stopped")[-1]["cause"]
        cluster.start(1)
        await_true(lambda: local.service.status()["outage"] is None, "the outage is over", 120)
        stage.feed(500)
        stage.await_all()
        await_true(lambda: local.events("outage_over"), "the log reports its end", 120)
        assert not local.events("failed", "thread_died", "stuck")
    stage.verify()
    other.close()


@pytest.mark.parametrize("load", [True, pytest.param(False, marks=pytest.mark.long)], ids=["in a transaction", "idle"])
def test_a_stop_ends_in_time_though_the_broker_is_frozen(stage: Stage, cluster: Cluster, load: bool) -> None:
    """Within its grace period (F36): neither an open transaction nor the group's coordinator is waited for."""
    process = daemon(stage, "only", STATEHOLD_SERVICE__STOP_TIMEOUT=str(STOP_TIMEOUT))
    process.await_live(0, 1)
    feeding = stage.load(500) if load else None
    if feeding is not None:
        feeding.__enter__()
        await_true(lambda: stage.position() > 500, "load")
    cluster.pause(1)
    try:
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        await_true(lambda: not process.running, "the process ends", STOP_TIMEOUT + 60)
        seconds = time.monotonic() - began
    finally:
        cluster.resume(1)
        if feeding is not None:
            feeding.__exit__()
    # stop_timeout, then seconds for the thread and for the interpreter; CI's machines are slow
    assert seconds < STOP_TIMEOUT + 30
    process.start()
    process.await_live(0, 1, seconds=120)
    stage.await_all()
    assert process.stop() == 0
    stage.verify()


def test_a_call_that_never_comes_back_ends_the_service(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka has lost a broker and waits without end, whatever timeout it was given (issue 5511)."""
    never = threading.Event()
    monkeypatch.setattr(producer, "STUCK_AFTER", 1.0)
    original = producer.KafkaTransactions._alive
    calls: list[int] = []

    class Lost:
        def __init__(self, real: object) -> None:
            self._real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

        def commit_transaction(self, _: float) -> None:
            calls.append(1)
            never.wait()

    def alive(self: producer.KafkaTransactions) -> object:
        real = original(self)
        return Lost(real) if self._partition == 0 else real

    monkeypatch.setattr(producer.KafkaTransactions, "_alive", alive)
    settings = {"STATEHOLD_COMMIT__TIMEOUT": "2", "STATEHOLD_SERVICE__STOP_TIMEOUT": "2"}
    with Local(stage, **settings) as local:
        stage.feed(200)
        with pytest.raises(StuckCall, match="commit_transaction has not returned"):
            local.service.wait(120)
        stuck = local.events("stuck")[0]
        assert (stuck["partition"], stuck["doing"]) == (0, "commit_transaction")
        assert "never.wait()" in stuck["stack"]
    assert calls
    monkeypatch.undo()
    never.set()
    with Local(stage) as local:
        stage.await_all()
    stage.verify()


def test_statehold_run_ends_with_the_code_of_a_stuck_call() -> None:
    """Even though a thread is lost in a call: the interpreter's own end is not waited for."""
    script = (
        "import sys, threading; sys.argv = ['statehold', 'run']\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "from statehold.ops.cli import entry, main\n"
        f"main.app = lambda: sys.exit({int(Exit.STUCK)})\n"
        "entry.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], timeout=120, env=environment, check=False)
    assert done.returncode == Exit.STUCK
