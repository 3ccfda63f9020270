"""A real Kafka on this machine: one or three brokers on the loopback address.

    with Cluster() as kafka:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, ...})

Calls block and belong to one thread at a time. Brokers are numbered from 1.
"""

from __future__ import annotations

import base64
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.dev.broker import Broker
from holdfast.dev.errors import DevError
from holdfast.dev.jars import DEFAULT_VERSION, class_path
from holdfast.dev.ports import HOST, free_ports
from holdfast.dev.properties import Address

READY_SECONDS = 90.0


class Cluster:
    """Brokers that stop with the `with` block, and die with this process even if it is killed.

    `brokers` is 1 or 3 (three: replication factor 3, min.insync.replicas 2 for everything). `port` is the first
    broker's; without it free ports are taken. `directory` is kept; without it a temporary one is removed at the end.
    `settings` override the shipped broker settings. `advertised` maps a broker to the port that clients are told,
    for a proxy in front of it.
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
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        if brokers not in (1, 3):
            raise DevError(f"a cluster has 1 or 3 brokers, not {brokers}")
        self.version = version or DEFAULT_VERSION
        self._temporary = directory is None
        self.directory = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
        self._overrides = dict(settings or {})
        self._report = report
        self._addresses = _addresses(brokers, port, dict(advertised or {}))
        self._brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        """All brokers as clients should be told: `127.0.0.1:port`, comma-separated."""
        return ",".join(f"{HOST}:{address.advertised}" for address in self._addresses)

    @property
    def ports(self) -> dict[int, int]:
        """Broker number -> the port where it really listens for clients, proxy or not."""
        return {address.node: address.client for address in self._addresses}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, broker: int | None = None) -> None:
        """Start one broker, or all that are not running; return when an admin client can list topics.

        Raises `JavaMissing`, `JarsUnavailable`, `InUse`, `BrokerFailed`; after an error nothing is left running.
        """
        wanted = [broker] if broker is not None else list(self.ports)
        try:
            self._prepare()
            for number in wanted:
                if not self._brokers[number].is_alive():
                    self._brokers[number].launch(guarded=True, remove=self._temporary)
            self._wait_ready(wanted, frozenset(wanted))
        except BaseException:
            if broker is None:
                self.stop()
            raise

    def kill(self, broker: int) -> None:
        """SIGKILL one broker; returns when it is gone."""
        self._of(broker).kill()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the broker's host stays reachable, the broker says nothing."""
        self._of(broker).signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        """SIGCONT after `pause`."""
        self._of(broker).signal(signal.SIGCONT)

    def stop(self, broker: int | None = None) -> None:
        """Controlled shutdown of one broker, or of all; then the temporary directory is removed."""
        going = [self._of(broker)] if broker is not None else list(self._brokers.values())
        for each in going:
            each.request_stop()
        for each in going:
            each.wait_stopped()
        if broker is None and self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def is_alive(self, broker: int) -> bool:
        """Tell whether the broker's process lives; a paused one does."""
        return self._of(broker).is_alive()

    def _of(self, broker: int) -> Broker:
        if broker not in self._brokers:
            raise DevError(f"there is no broker {broker}; brokers: {', '.join(map(str, self._brokers)) or 'none yet'}")
        return self._brokers[broker]

    def _prepare(self) -> None:
        """Make, configure and format the brokers, once."""
        if self._brokers:
            return
        path = class_path(self.version, report=self._report)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for address in self._addresses:
            broker = Broker(address, self.directory / f"broker-{address.node}", path)
            broker.configure(self._addresses, self._overrides)
            broker.format(cluster_id)
            self._brokers[address.node] = broker

    def _wait_ready(self, wanted: list[int], expected: frozenset[int]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        for number in wanted:
            self._brokers[number].wait_ready(expected, deadline)


def _addresses(brokers: int, port: int | None, advertised: dict[int, int]) -> list[Address]:
    """Ports for every broker; with `port` the clients' ports count up from it."""
    chosen = free_ports(3 * brokers)
    made = []
    for index in range(brokers):
        client, internal, controller = chosen[3 * index : 3 * index + 3]
        client = port + index if port else client
        made.append(Address(index + 1, client, internal, controller, advertised.get(index + 1, client)))
    return made
