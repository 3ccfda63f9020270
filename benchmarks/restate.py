"""A Restate server with its service on this machine, for `script/bench calls` and `script/bench ask`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import environments
from statehold.dev.ports import free_ports

HERE: Final = Path(__file__).parent
_PATIENCE: Final = 120.0

#: The best found settings of the server, in addition to its defaults: docs/explanation/comparison.md has what was tried
BEST: Final = """\
default-num-partitions = {partitions}
disable-telemetry = true
log-filter = "warn"
[worker.invoker]
concurrent-invocations-limit = 100000
[bifrost]
default-provider = "{provider}"
"""


@dataclass(frozen=True)
class Setup:
    """Settings of the server and of the service."""

    partitions: int = 4
    provider: str = "local"
    #: processes of the service
    workers: int = 1
    #: "" for the stream in both directions that it prefers, or request_response
    protocol: str = ""
    more: str = ""


class Restate:
    """The server, and the service as processes of its own; both in one folder that `close` removes."""

    def __init__(self, setup: Setup, bootstrap: str, scorer: int = 0) -> None:
        self.setup, self._bootstrap, self._scorer = setup, bootstrap, scorer
        self._folder = tempfile.TemporaryDirectory(prefix="statehold-restate-")
        self.folder = Path(self._folder.name)
        self.ingress, self._admin, self._node, self._app = free_ports(4)
        self.server: subprocess.Popen[bytes] | None = None
        self.service: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both and let the server know the service. Raises `environments.Skipped`."""
        server = environments.restate_server()
        config = self.folder / "restate.toml"
        text = BEST.format(partitions=self.setup.partitions, provider=self.setup.provider)
        kafka = f'[[ingress.kafka-clusters]]\nname = "here"\nbrokers = ["PLAINTEXT://{self._bootstrap}"]\n'
        config.write_text(
            f'node-name = "one"\nlisten-mode = "tcp"\nbind-ip = "127.0.0.1"\nbind-port = {self._node}\n'
            f'base-dir = "{self.folder}/data"\n{text}{self.setup.more}'
            f"[ingress]\nbind-port = {self.ingress}\n{kafka}[admin]\nbind-port = {self._admin}\n"
        )
        self.server = self._process([server, "--config-file", str(config), "--no-logo"], "server")
        self.start_service()
        self._await(lambda: self._get(self._admin, "/health"))
        self._await(lambda: self._post("/deployments", {"uri": f"http://127.0.0.1:{self._app}"}))
        self._await(lambda: self._get(self.ingress, "/restate/health"))

    def start_service(self) -> None:
        """Start the service again after `kill_service`."""
        python = environments.python_of("restate")
        config = self.folder / "hypercorn.toml"
        config.write_text(
            f'bind = "127.0.0.1:{self._app}"\nworkers = {self.setup.workers}\nworker_class = "uvloop"\n'
            "h2_max_concurrent_streams = 2147483647\nkeep_alive_max_requests = 2147483647\n"
            "keep_alive_timeout = 2147483647\n"
        )
        command = [python, "-m", "hypercorn", "--config", str(config), "restate_app:app"]
        self.service = self._process(command, "service")

    def kill_service(self) -> None:
        """SIGKILL to every process of the service."""
        assert self.service is not None
        os.killpg(self.service.pid, signal.SIGKILL)
        self.service.wait()

    def subscribe(self, topic: str, handler: str) -> None:
        """Let a handler take the records of a topic from its beginning."""
        body = {"source": f"kafka://here/{topic}", "sink": f"service://Account/{handler}"}
        self._post(
            "/subscriptions", body | {"options": {"auto.offset.reset": "earliest", "group.id": f"restate-{self._node}"}}
        )

    def totals(self) -> dict[str, int]:
        """Return the total of each account, from the server's own table of states."""
        rows = self.query("SELECT service_key, value_utf8 FROM state WHERE key = 'total'")
        return {row["service_key"]: int(row["value_utf8"]) for row in rows}

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Ask the server's tables."""
        rows: list[dict[str, Any]] = self._post("/query", {"query": sql})["rows"]
        return rows

    def said(self, name: str = "server") -> str:
        """Return the end of what a process wrote."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-5:])

    def pids(self) -> list[int]:
        """Return the processes of server and service."""
        found = []
        for each in (self.server, self.service):
            if each is not None:
                found += [each.pid, *_below(each.pid)]
        return found

    def close(self) -> None:
        """Kill both: nothing of them is kept."""
        for each in (self.server, self.service):
            if each is not None and each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
        self._folder.cleanup()

    def _process(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "SCORER_PORT": str(self._scorer), "RESTATE_PROTOCOL": self.setup.protocol}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=HERE / "contenders",
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json", "accept": "application/json"}
        url = f"http://127.0.0.1:{self._admin}{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60
        ) as answer:
            return json.loads(answer.read() or b"null")

    def _get(self, port: int, path: str) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
            pass

    def _await(self, call: Callable[[], Any]) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                call()
                return
            except OSError as error:
                if time.monotonic() > until or (self.server is not None and self.server.poll() is not None):
                    raise environments.Skipped(f"Restate does not start: {error}: {self.said()}") from error
                time.sleep(0.1)


@contextmanager
def running(setup: Setup, bootstrap: str, scorer: int = 0) -> Iterator[Restate]:
    """Start a server with its service, and kill them at the end."""
    restate = Restate(setup, bootstrap, scorer)
    try:
        restate.start()
        yield restate
    finally:
        restate.close()


def processor(pids: list[int]) -> float:
    """Return the processor seconds of these processes so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _below(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return children + [deeper for each in children for deeper in _below(each)]
    return []
