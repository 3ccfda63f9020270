"""`statehold dev up | status | down`, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statehold.dev import Cluster
from statehold.dev.ports import free_ports
from statehold.dev.process import Identity
from statehold.dev.state import BrokerState, load, save
from statehold.kafka.common.broker_probe import listed_brokers

pytestmark = pytest.mark.kafka


@dataclass
class Command:
    """`statehold dev ...` on a directory of the test's own."""

    python: str
    directory: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [
            self.python,
            "-m",
            "statehold.ops.cli.entry",
            "dev",
            *arguments,
            "--dir",
            str(self.directory),
        ]
        env = {**os.environ, **environment}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)

    def shown(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def dev(python: str, tmp_path: Path) -> Iterator[Command]:
    command = Command(python, tmp_path / "dev")
    yield command
    command.run("down", "--delete")


@pytest.fixture
def port() -> str:
    return str(free_ports(1)[0])


def test_up_status_down_and_up_again(dev: Command, port: str) -> None:
    up = dev.shown("up", "--port", port)
    assert (up["bootstrap_servers"], up["brokers"][0]["state"]) == (f"127.0.0.1:{port}", "ready")
    assert listed_brokers(up["bootstrap_servers"], 5) == frozenset({1})
    assert dev.run("status").returncode == 0

    assert dev.shown("down")["stopped"] == [up["brokers"][0]["pid"]]
    assert dev.run("status").returncode == 3
    assert dev.shown("down")["stopped"] == []

    again = dev.run("up").stdout.splitlines()  # the port of last time, not the default
    assert f"bootstrap servers: {up['bootstrap_servers']}" in again
    assert f"export STATEHOLD_KAFKA__BOOTSTRAP_SERVERS={up['bootstrap_servers']}" in again
    assert f"Stop: statehold dev down --dir {dev.directory}" in again


@pytest.mark.long
def test_the_variable_for_other_commands_is_named_unless_it_is_set(dev: Command, port: str) -> None:
    variable = "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"
    assert f"export {variable}=127.0.0.1:{port}" in dev.run("up", "--port", port).stdout
    assert "export" not in dev.run("status", **{variable: f"127.0.0.1:{port}"}).stdout
    assert "export" in dev.run("status", **{variable: "127.0.0.1:1"}).stdout


def test_a_killed_broker_is_seen_and_up_recovers_it(dev: Command, port: str) -> None:
    pid = dev.shown("up", "--port", port)["brokers"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    broker = Identity.of(pid)
    assert broker is None or broker.wait_gone(60)

    assert dev.shown("status")["brokers"][0]["state"] == "down"
    assert dev.shown("up")["brokers"][0]["state"] == "ready"


def test_a_directory_in_use_names_the_holder_and_nothing_is_stopped(dev: Command, port: str) -> None:
    pid = dev.shown("up", "--port", port)["brokers"][0]["pid"]

    second = dev.run("up")

    assert second.returncode == 1
    assert second.stderr.startswith(f"statehold: directory {dev.directory} is held by pid {pid} (")
    assert second.stderr.count("\n") == 1
    assert dev.run("status").returncode == 0


def test_a_port_in_use_names_the_holder(dev: Command, kafka: Cluster) -> None:
    held = kafka.ports[1]

    rejected = dev.run("up", "--port", str(held))

    assert rejected.returncode == 1
    assert rejected.stderr.startswith(f"statehold: port {held} is held by pid ")
    assert "kafka.Kafka" in rejected.stderr
    assert kafka.is_alive(1)


@pytest.mark.long
def test_a_cluster_of_a_test_is_not_taken_over(dev: Command) -> None:
    with Cluster(directory=dev.directory) as mine:
        rejected = dev.run("up")
        assert rejected.returncode == 1
        assert f"directory {dev.directory} is held by pid" in rejected.stderr
        assert mine.is_alive(1)


@pytest.mark.long
def test_down_never_stops_what_it_did_not_start(dev: Command, port: str) -> None:
    """Another process has the recorded pid."""
    dev.shown("up", "--port", port)
    dev.shown("down")
    known = load(dev.directory)
    assert known is not None
    with subprocess.Popen(["sleep", "600"]) as stranger:
        now = Identity.of(stranger.pid)
        assert now is not None
        recorded = BrokerState(known.brokers[0].address, replace(now, started="an earlier life"))
        save(dev.directory, msgspec.structs.replace(known, brokers=(recorded,)))

        assert dev.shown("down")["stopped"] == []

        assert stranger.poll() is None
        stranger.kill()


def test_status_without_a_cluster_says_how_to_start_one(dev: Command) -> None:
    absent = dev.run("status")

    assert (absent.returncode, absent.stdout) == (3, "")
    assert absent.stderr == (f"statehold: there is no cluster in {dev.directory}: start one with `statehold dev up`\n")
