"""A broker's name stops resolving: existing connections continue, others wait, and all recover by themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import SETTINGS, started
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.stage import Stage

from statehold.dev import Cluster
from statehold.dev.properties import Host

pytestmark = [pytest.mark.kafka, pytest.mark.root, pytest.mark.long]

NAME = "localhost"  # the only name that resolves everywhere; the service has a hosts file of its own


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[Stage, Proxy]]:
    """A broker that clients know by name, behind a proxy that can break their connections."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("a process cannot have a hosts file of its own here: unshare does not work")
    with Proxy() as proxy:
        cluster = started(lambda: Cluster(settings=SETTINGS, advertised={1: proxy.port}, hosts={1: Host(name=NAME)}))
        with cluster:
            proxy.connect(cluster.ports[1])
            stage = Stage(cluster.bootstrap_servers, tmp_path, 2).create_topics()
            yield stage, proxy
            stage.close()


class Apart(Process):
    """A process whose /etc/hosts is a file of the test's."""

    hosts: Path

    def start(self) -> Apart:
        script = f"mount --bind {self.hosts} /etc/hosts && exec {self._environment['PYTHON']} -m tests.support.apps.run"
        self._environment["PROBE_PYTHON"] = "unshare"
        self.command = ("--mount", "sh", "-c", script)
        super().start()
        return self


def test_a_name_that_stops_resolving(named: tuple[Stage, Proxy], tmp_path: Path, python: str) -> None:
    stage, proxy = named
    process = Apart("only", tmp_path, {**stage.environment(), "PYTHON": python})
    process.hosts = tmp_path / "hosts"
    process.hosts.write_text(f"127.0.0.1 {NAME}\n")
    stage.processes["only"] = process
    process.start().await_live(0, 1, seconds=120)
    stage.feed(500)
    stage.await_all()
    process.hosts.write_text("")
    stage.feed(500)
    stage.await_all()  # what is connected needs no name
    proxy.reset_all()
    process.await_event("outage", seconds=120)
    process.hosts.write_text(f"127.0.0.1 {NAME}\n")
    stage.feed(500)
    stage.await_all(240)
    process.await_event("outage_over", seconds=120)
    assert not process.events("failed", "thread_died", "stuck")
    assert process.stop() == 0
    stage.verify()
