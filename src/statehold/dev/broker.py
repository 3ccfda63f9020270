"""One broker process: format its directory, start, pause, kill. Used from one thread at a time."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from statehold.dev.errors import BrokerFailed
from statehold.dev.jars import keep_format, kept_format
from statehold.dev.java import find_java
from statehold.dev.ports import HOST, require_free, require_unheld
from statehold.dev.process import DeathGuard, Identity
from statehold.dev.properties import Address, compose, render, shipped
from statehold.kafka.common.broker_probe import listed_brokers

# Starts in seconds with about 370 MB; a small heap and the quick compiler are wrong for production.
# -UsePerfData because the JVM would leave a file in the system's temporary directory.
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")
STOP_SECONDS = 30.0


class Broker:
    """Sends signals only to the process whose pid and start time it has recorded."""

    def __init__(self, address: Address, directory: Path, class_path: str, jvm: Sequence[str] = ()) -> None:
        self.address = address
        self.directory = directory
        self.identity: Identity | None = None
        self.log = directory / "broker.log"
        #: options of the next JVM that this object starts, after the shipped ones
        self.jvm = tuple(jvm)
        self._class_path = class_path
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None

    @classmethod
    def adopt(cls, address: Address, cluster: Path, identity: Identity | None) -> Broker:
        """Return a broker that an earlier command started; this object can stop it, not start it."""
        broker = cls(address, cluster / f"broker-{address.node}", class_path="")
        broker.identity = identity
        return broker

    @property
    def bootstrap(self) -> str:
        """The address at which the broker listens; it may advertise another."""
        return f"{self.address.host}:{self.address.client}"

    def is_alive(self) -> bool:
        """Return whether the broker's process lives; a paused one does."""
        return self.identity is not None and self.identity.is_alive()

    def require_free(self) -> None:
        """Raise `InUse` when another process holds the data directory or a port."""
        require_unheld(self.directory / "data")
        if self.address.host != HOST:
            return  # another network namespace has ports of its own
        for port in (self.address.client, self.address.internal, self.address.controller):
            require_free(port, "end that process or choose another port")

    def configure(self, all_: list[Address], overrides: Mapping[str, str]) -> None:
        """Write the settings files that the broker reads when it starts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = compose(self.address, all_, self.directory / "data", overrides)
        (self.directory / "server.properties").write_text(render(settings), encoding="utf-8")
        logging = (shipped() / "log4j2.properties").read_text(encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(logging, encoding="utf-8")

    def format(self, cluster_id: str, version: str) -> None:
        """Prepare an empty data directory; leave a formatted one unchanged.

        Kafka's own tool takes a second, so it formats the first directory of a version, and later ones are copies.
        """
        data = self.directory / "data"
        if (data / "meta.properties").exists():
            return
        if (kept := kept_format(version)) is not None:
            shutil.copytree(kept, data, ignore=shutil.ignore_patterns("SHA256SUMS"), dirs_exist_ok=True)
            # last, because its existence says that the directory is formatted
            (data / "meta.properties").write_text(render(_meta(self.address.node, cluster_id)), encoding="utf-8")
            return
        config = str(self.directory / "server.properties")
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config]
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise BrokerFailed(f"broker {self.address.node} rejects its settings: see {self.log}")
        keep_format(version, data)

    def launch(self, *, guarded: bool, remove: bool) -> None:
        """Start the process without waiting for it; a `guarded` one is killed when this process ends in any way."""
        self.require_free()
        self._reap()  # a process that ended by itself
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
        """Send a signal to the broker's process; False when it has ended."""
        return self.identity is not None and self.identity.signal(number)

    def pause(self) -> None:
        """SIGSTOP; return once every thread has stopped, if the process is a child: until then it may answer."""
        if self.signal(signal.SIGSTOP) and self._process is not None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def request_stop(self) -> None:
        """Request a controlled shutdown; resume a paused process, because it handles no SIGTERM."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)

    def wait_stopped(self) -> None:
        """Block until the process has ended; kill it after 30 s."""
        if self.identity is not None and not self.identity.wait_gone(STOP_SECONDS):
            self.signal(signal.SIGKILL)
            self.identity.wait_gone(STOP_SECONDS)
        self._reap()

    def kill(self) -> None:
        """SIGKILL; return when the process has ended and its ports are free."""
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
        # The JVM unpacks native libraries there and leaves them behind when it is killed.
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        own = [f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={self.directory}/log4j2.properties"]
        return [find_java(), *JVM, *self.jvm, *own, "-cp", self._class_path]

    def _last_error(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line]
        return f"{errors[-1][:160]} ({self.log})" if errors else f"see {self.log}"


def new_id() -> str:
    """Return an id as Kafka makes them, without a dash at its start, which Kafka's tools would take for an option."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _meta(node: int, cluster_id: str) -> dict[str, str]:
    return {"version": "1", "cluster.id": cluster_id, "node.id": str(node), "directory.id": new_id()}
