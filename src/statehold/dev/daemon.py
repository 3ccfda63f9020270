"""Brokers that outlive the command that started them: `statehold dev up`, `status` and `down`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from statehold.dev.broker import Broker
from statehold.dev.cluster import Cluster
from statehold.dev.errors import NoCluster
from statehold.dev.ports import HOST
from statehold.dev.state import BrokerState, ClusterState, load, save
from statehold.kafka.common.broker_probe import listed_brokers

State = Literal["ready", "silent", "down"]


class BrokerReport(msgspec.Struct, frozen=True):
    """One broker as seen now; `state` is ready, silent (alive without an answer) or down."""

    broker: int
    port: int
    pid: int | None
    state: State
    log: str


class ClusterReport(msgspec.Struct, frozen=True):
    """A cluster as seen now."""

    directory: str
    version: str
    bootstrap_servers: str
    brokers: tuple[BrokerReport, ...]

    @property
    def running(self) -> int:
        """The number of living brokers."""
        return sum(broker.state != "down" for broker in self.brokers)

    @property
    def ready(self) -> bool:
        """Whether all brokers answer."""
        return all(broker.state == "ready" for broker in self.brokers)


def default_directory() -> Path:
    """Return `$XDG_STATE_HOME/statehold/dev` or `~/.local/state/statehold/dev`."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(Path.home(), ".local", "state")
    return Path(base) / "statehold" / "dev"


def remembered_port(directory: Path) -> int | None:
    """Return the first broker's port at the last start, None in a new directory."""
    known = load(directory)
    return known.brokers[0].address.client if known else None


def up(
    directory: Path, brokers: int, port: int | None, version: str | None, report: Callable[[str], object]
) -> ClusterReport:
    """Start a cluster and leave it running, with the data that the directory holds.

    Raises `InUse` when another process holds the directory or a port, and the other errors of `Cluster.start`.
    """
    Cluster(brokers, port=port, directory=directory, version=version, detached=True, report=report).start()
    return status(directory)


def status(directory: Path) -> ClusterReport:
    """Ask every broker of `directory`, at most 2 s each. Raises `NoCluster` when it holds no cluster."""
    known = _known(directory)
    brokers = tuple(_look(directory, each) for each in known.brokers)
    servers = ",".join(f"{HOST}:{each.address.client}" for each in known.brokers)
    return ClusterReport(str(directory), known.version, servers, brokers)


def down(directory: Path, *, delete: bool) -> list[int]:
    """Stop the brokers that `up` started and return their pids; `delete` also removes the data.

    A process that later got the pid of a broker gets no signal.
    """
    known = _known(directory)
    brokers = [Broker.adopt(each.address, directory, each.process) for each in known.brokers]
    stopped = [each.identity.pid for each in brokers if each.identity is not None and each.is_alive()]
    for broker in brokers:
        broker.request_stop()
    for broker in brokers:
        broker.wait_stopped()
    save(
        directory,
        ClusterState(known.version, known.cluster_id, tuple(BrokerState(b.address, None) for b in brokers)),
    )
    if delete:
        shutil.rmtree(directory)
    return stopped


def _known(directory: Path) -> ClusterState:
    known = load(directory)
    if known is None:
        raise NoCluster(f"there is no cluster in {directory}: start one with `statehold dev up`")
    return known


def _look(directory: Path, known: BrokerState) -> BrokerReport:
    node, port = known.address.node, known.address.client
    alive = known.process is not None and known.process.is_alive()
    answers = alive and listed_brokers(f"{HOST}:{port}", 2.0) is not None
    state: State = "ready" if answers else "silent" if alive else "down"
    pid = known.process.pid if known.process and alive else None
    return BrokerReport(node, port, pid, state, str(directory / f"broker-{node}" / "broker.log"))
