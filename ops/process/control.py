"""The control socket: the ops routes and a few commands, over HTTP on a Unix socket of this machine.

`statehold run` opens one for its service; an embedded service may do the same: `with ControlServer(service): ...`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from statehold.errors import StateholdError
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered, as_json
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.http.guard import SocketGuard
from statehold.ops.http.routes import Routes
from statehold.ops.process.stacks import stacks
from statehold.ops.remote import control_sockets
from statehold.service import Service

_RETRY_SECONDS: Final = 2.0
_GLANCE: Final = 0.005


#: path -> method, and what returns the fields of the answer
Commands = Mapping[str, tuple[str, Callable[[HttpRequest], dict[str, Any]]]]


class ControlServer:
    """Answers for one service from threads of its own, so that it answers while everything else is stuck.

    The socket has mode 0600, so only its user and root may connect. `close` removes it; the file of a killed process
    is removed by the next process that finds it.
    """

    def __init__(self, service: Service, directory: Path | None = None) -> None:
        self._service = service
        self._directory = directory
        self._server: BoundedServer | None = None
        #: the socket; empty until `open`
        self.path = Path()

    def open(self) -> Path:
        """Listen; return the socket's path.

        :raises OSError: the directory or the socket cannot be made.
        """
        directory = control_sockets.own_directory() if self._directory is None else self._directory
        listener, self.path = control_sockets.listen(directory, self._service.names.group)
        self._server = BoundedServer(listener, ControlRoutes(self._service).answer)
        self._server.begin(f"control-{self._service.name}")
        return self.path

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.end()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ControlRoutes:
    """The ops routes, and `POST /retry`, `POST /drain`, `GET /stacks`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes = Routes(service, SocketGuard(service.settings.ops))
        self._commands: Commands = {
            "/retry": ("POST", self._retry),
            "/drain": ("POST", self._drain),
            "/stacks": ("GET", lambda _: {"pid": os.getpid(), "stacks": stacks()}),
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        if request.path not in self._commands:
            return self._routes.answer(request)
        return answered(partial(obeyed, self._commands), request)

    def sample(self) -> None:
        """Take a sample for the console; call it every second or two."""
        self._routes.sample()

    def _drain(self, request: HttpRequest) -> dict[str, Any]:
        """Return at once: draining blocks, and the client follows the status."""
        threading.Thread(target=self._service.drain, name="drain", daemon=True).start()
        return self._routes.status()

    def _retry(self, request: HttpRequest) -> dict[str, Any]:
        """Retry failed partitions only: the next failure would consume a retry that comes too early."""
        chosen, phases = partition_of(request), self._phases()
        if chosen is not None and chosen not in phases:
            raise Rejected(404, f"partition {chosen} is not here")
        failed = [p for p, phase in phases.items() if phase == "failed" and chosen in (None, p)]
        for partition in failed:
            self._service.retry(partition)
        # The client looks at the outcome next, and must not take the old failure for a new one.
        deadline = time.monotonic() + _RETRY_SECONDS
        while time.monotonic() < deadline and any(self._phases().get(p) == "failed" for p in failed):
            time.sleep(_GLANCE)
        return {"retried": failed, **self._routes.status()}

    def _phases(self) -> dict[int, str]:
        return {each["partition"]: each["phase"] for each in self._service.status()["partitions"]}


def obeyed(commands: Commands, request: HttpRequest) -> HttpAnswer:
    """Run the command of this path. :raises Rejected: it has another method, or the command rejects the request."""
    method, command = commands[request.path]
    if request.method != method:
        raise Rejected(405, f"{request.method} {request.path}: only {method}", {"Allow": method})
    try:
        return as_json(command(request))
    except StateholdError as error:
        raise Rejected(409, str(error)) from error


def partition_of(request: HttpRequest) -> int | None:
    """Return None for all of them.

    :raises Rejected: `partition` is missing, or neither a number nor `all`.
    """
    text = request.query.get("partition", "")
    if text == "all":
        return None
    if not text.isdecimal() or len(text) > 9:
        raise Rejected(400, f"partition={text}: write a number, or all")
    return int(text)
