"""One broker process: formatted once, started, killed, paused. Used from one thread at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from statehold.dev.errors import BrokerFailed
from statehold.dev.java import find_java
from statehold.dev.ports import HOST, require_free, require_unheld
from statehold.dev.process import DeathGuard, Identity
from statehold.dev.properties import Address, compose, render, shipped
from statehold.kafka.common.broker_probe import listed_brokers

# Starts in seconds with about 370 MB; a server would take neither the small heap nor the quick compiler.
# Performance data would be one more file in the system's temporary directory.
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")
STOP_SECONDS = 30.0


class Broker:
    """Invariant: a signal goes only to the process whose pid and start time we recorded."""

    def __init__(self, address: Address, directory: Path, class_path: str) -> None:
        self.address = address
        self.directory = directory
        self.identity: Identity | None = None
        self.log = directory / "broker.log"
        self._class_path = class_path
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None

    @classmethod
    def adopt(cls, address: Address, cluster: Path, identity: Identity | None) -> Broker:
        """Return a broker that an earlier command started; it can be stopped, not started."""
        broker = cls(address, cluster / f"broker-{address.node}", class_path="")
        broker.identity = identity
        return broker

    @property
    def bootstrap(self) -> str:
        """The address at which it really listens, whatever it advertises."""
        return f"{self.address.host}:{self.address.client}"

    def is_alive(self) -> bool:
        """Tell whether the process that we started lives (a paused one does)."""
        return self.identity is not None and self.identity.is_alive()

    def require_free(self) -> None:
        """Raise `InUse` when somebody holds the data directory or a port."""
        require_unheld(self.directory / "data")
        if self.address.host != HOST:
            return  # another network: its ports are its own
        for port in (self.address.client, self.address.internal, self.address.controller):
            require_free(port, "end that process or choose another port")

    def configure(self, all_: list[Address], overrides: Mapping[str, str]) -> None:
        """Write the settings files; a later start reads them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = compose(self.address, all_, self.directory / "data", overrides)
        (self.directory / "server.properties").write_text(render(settings), encoding="utf-8")
        logging = (shipped() / "log4j2.properties").read_text(encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(logging, encoding="utf-8")

    def format(self, cluster_id: str) -> None:
        """Prepare an empty data directory; one that is formatted already is left as it is."""
        if (self.directory / "data" / "meta.properties").exists():
            return
        config = str(self.directory / "server.properties")
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config]
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise BrokerFailed(f"broker {self.address.node} refuses its settings: see {self.log}")

    def launch(self, *, guarded: bool, remove: bool) -> None:
        """Start the process without waiting for it. `guarded`: it dies with this process, even by kill -9."""
        self.require_free()
        self._reap()  # one that ended by itself
        with self.log.open("ab") as log:
            command = [*self.address.command, *self._java(), "kafka.Kafka", str(self.directory / "server.properties")]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.identity = Identity.of(self._process.pid)
        if guarded:
            self._guard = DeathGuard(self._process.pid, self.directory.parent if remove else None)

    def wait_ready(self, brokers: frozenset[int], deadline: float) -> None:
        """Block until an admin client can list topics here and sees all of `brokers`."""
        while (seen := listed_brokers(self.bootstrap, 2.0)) is None or not brokers <= seen:
            if not self.is_alive():
                raise BrokerFailed(f"broker {self.address.node} ended while starting: {self._last_error()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"broker {self.address.node} was not ready in time: see {self.log}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to our process; False when it is gone."""
        return self.identity is not None and self.identity.signal(number)

    def pause(self) -> None:
        """SIGSTOP; returns once every thread stands still, if it is our child: until then it may answer."""
        if self.signal(signal.SIGSTOP) and self._process is not None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def request_stop(self) -> None:
        """Ask for a controlled shutdown; a paused process is woken, or it could not hear."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)

    def wait_stopped(self) -> None:
        """Block until the process is gone; after 30 s it is killed."""
        if self.identity is not None and not self.identity.wait_gone(STOP_SECONDS):
            self.signal(signal.SIGKILL)
            self.identity.wait_gone(STOP_SECONDS)
        self._reap()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone and its ports are free."""
        self.signal(signal.SIGKILL)
        if self.identity is not None:
            self.identity.wait_gone(STOP_SECONDS)
        self._reap()

    def _reap(self) -> None:
        if self._guard is not None:  # before the system can give the pid to another process
            self._guard.cancel()
            self._guard = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        self.identity = None

    def _java(self) -> list[str]:
        # The JVM unpacks its native libraries there and leaves them lying when it is killed.
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        own = [f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={self.directory}/log4j2.properties"]
        return [find_java(), *JVM, *own, "-cp", self._class_path]

    def _last_error(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line]
        return f"{told[-1][:160]} ({self.log})" if told else f"see {self.log}"
