"""The unit in a real systemd, as PID 1 of namespaces of its own, with a real service on a real broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Commands
from tests.support.booted import INSIDE, Booted, CannotBoot, why_not

from statehold.dev import Cluster
from statehold.dev.jars import cache_root
from statehold.dev.java import find_spark_java
from statehold.ops.generate import systemd_units

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]

APP = """
import ctypes
import os
import time
from statehold import Handler, Output, Record, Service

class Held(Handler[str]):
    echo = Output("{name}.out", value=str)

    def on_record(self, record: Record[str]) -> None:
        if record.value == "hang" and os.environ.get("HANGS") and not os.path.exists("hung"):
            open("hung", "w").close()
            ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock: no thread of the process runs any more
        self.echo.send(record.value)

service = Service("{name}", input="{name}.in", handler=Held)
"""
UNIT = "statehold-held@1.service"
COMPACTION = "statehold-held-compact.service"
METRICS = "/var/lib/prometheus/node-exporter"


@pytest.fixture
def machine(on_kafka: Commands, kafka: Cluster, root: Path) -> Iterator[Booted]:
    """With the units that `statehold deploy systemd` makes, and a drop-in for what this machine has elsewhere."""
    directory = on_kafka.directory
    on_kafka.write_app(APP)
    on_kafka.create_topics(partitions=2)
    (directory / "held.toml").write_text(
        f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n[group]\nsession_timeout = "6s"\n'
    )
    directory.chmod(0o777)
    plan = systemd_units.UnitPlan(
        name="held",
        subject="app:service",
        config=INSIDE / "held.toml",
        instances=1,
        stop_timeout=25.0,
        directory=INSIDE,
        program=Path(sys.executable).with_name("statehold"),
        user="daemon",
        ops_port=0,
    )
    homes = [path for path in {sys.base_prefix, sys.prefix, str(root)} if path.startswith(("/root/", "/home/"))]
    booted = Booted(directory)
    for path, text in systemd_units.units(plan).items():
        booted.unit(path, text)
    booted.unit(
        f"{UNIT}.d/here.conf",
        "[Service]\n# The interpreter is in root's home, and a bare systemd has no journal.\nProtectHome=tmpfs\n"
        f"BindReadOnlyPaths={' '.join(homes)}\nReadWritePaths={INSIDE}\nWatchdogSec=5s\nRestartSec=100ms\n"
        f"Environment=HANGS=1\nStandardOutput=append:{INSIDE}/service.log\nStandardError=append:{INSIDE}/service.log\n",
    )
    metrics = directory / "metrics"
    metrics.mkdir(mode=0o777)
    metrics.chmod(0o777)
    homes += [str(cache_root())]
    booted.unit(
        f"{COMPACTION}.d/here.conf",
        f"[Service]\nProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(homes)}\nBindPaths={INSIDE}/metrics:{METRICS}\n"
        f"Environment=XDG_CACHE_HOME={cache_root().parent}\n"
        f"StandardOutput=append:{INSIDE}/compaction.log\nStandardError=append:{INSIDE}/compaction.log\n",
    )
    try:
        with booted:
            yield booted
    except CannotBoot as error:
        pytest.fail(f"systemd does not start here: {error}")


def test_the_life_of_a_unit(machine: Booted, on_kafka: Commands) -> None:
    """Start until live, kill and restart, watchdog and restart, stop; then a configuration error, which stays down."""
    machine.systemctl("start", "statehold-held.target")
    machine.systemctl("start", UNIT)  # returns when READY=1 was said
    first = machine.show(UNIT, "MainPID", "ActiveState", "StatusText", "NRestarts", "MemoryMax")
    assert (first["ActiveState"], first["StatusText"], first["NRestarts"]) == ("active", "2 live", "0")

    machine.systemctl("kill", "--signal=SIGKILL", UNIT)
    machine.await_property(UNIT, "NRestarts", lambda text: text == "1")
    machine.await_property(UNIT, "StatusText", lambda text: text == "2 live")

    # To systemd itself an end by SIGHUP is a clean one.
    machine.systemctl("kill", "--signal=SIGHUP", UNIT)
    machine.await_property(UNIT, "NRestarts", lambda text: text == "2")
    machine.await_property(UNIT, "StatusText", lambda text: text == "2 live")

    on_kafka.feed("hang", partition=0)
    machine.await_property(UNIT, "NRestarts", lambda text: text == "3")
    machine.await_property(UNIT, "StatusText", lambda text: text == "2 live")
    log = (on_kafka.directory / "service.log").read_text()
    assert "Fatal Python error: Aborted" in log
    assert "in on_record" in log

    machine.systemctl("stop", "statehold-held.target")
    machine.await_property(UNIT, "ActiveState", lambda text: text == "inactive")
    ended = machine.show(UNIT, "Result", "ExecMainStatus")
    assert (ended["Result"], ended["ExecMainStatus"]) == ("success", "0"), machine.tail()

    with (on_kafka.directory / "held.toml").open("a") as config:
        config.write("[commit]\ninterval = 'never'\n")
    machine.systemctl("start", UNIT, check=False)
    machine.await_property(UNIT, "ActiveState", lambda text: text == "failed")
    failed = machine.show(UNIT, "Result", "ExecMainStatus")
    assert (failed["Result"], failed["ExecMainStatus"]) == ("exit-code", "5")


@pytest.mark.spark
def test_a_compaction_works_in_its_confinement(machine: Booted, on_kafka: Commands) -> None:
    """Spark folds, publishes and writes its metrics, in the unit as written."""
    find_spark_java()
    on_kafka.feed("one", partition=0)
    machine.systemctl("start", UNIT)
    machine.await_property(UNIT, "StatusText", lambda text: text == "2 live")
    machine.systemctl("stop", UNIT)

    machine.systemctl("start", COMPACTION)  # returns when it has ended, and fails if it has

    ended = machine.show(COMPACTION, "Result", "ExecMainStatus")
    assert (ended["Result"], ended["ExecMainStatus"]) == ("success", "0"), machine.tail()
    metrics = on_kafka.directory / "metrics" / "statehold-compact-held.prom"
    assert f'statehold_compaction_success{{service="{on_kafka.name}"}} 1.0' in metrics.read_text()
    assert metrics.stat().st_mode & 0o004, "node_exporter reads it as another user"
