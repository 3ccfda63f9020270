"""Runs in each process of a supervisor: its control socket, and its end when the supervisor ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from statehold.health import process_memory
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, as_json
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.http.server import Sampling
from statehold.ops.process.control import ControlRoutes
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor.launch import Launch
from statehold.ops.supervisor.pinning import pin_process
from statehold.service import Service
from statehold.telemetry.log_events import Log

#: seconds beyond `service.stop_timeout` for a process without a supervisor to end
_GRACE: Final = 10.0


def follow(launch: Launch, stop_timeout: float) -> None:
    """Stop this process when its supervisor has ended, also if that was killed. Call it on the main thread."""
    thread = threading.Thread(target=_await_end, args=(launch.pipe, stop_timeout), name="supervisor-watch", daemon=True)
    thread.start()
    process_memory.share_among(launch.among)
    if launch.core is not None:
        pin_process(launch.core)


def _await_end(pipe: int, stop_timeout: float) -> None:
    """Wait for the end of the pipe, to which nothing is written."""
    with contextlib.suppress(OSError):
        os.read(pipe, 1)
    Log().warning("stopping", cause="the supervisor has ended")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_timeout + _GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


class MemberServer:
    """The control socket of one process, which has the routes of an ops server as well. Only the supervisor asks it."""

    def __init__(self, service: Service, launch: Launch) -> None:
        self._service, self._launch = service, launch
        self._routes = ControlRoutes(service)
        self._path = Path(launch.socket)
        self._server: BoundedServer | None = None
        self._sampling: Sampling | None = None

    def open(self) -> None:
        """Listen. :raises OSError: the socket cannot be made."""
        self._path.unlink(missing_ok=True)  # of a process that was killed
        self._server = BoundedServer(control_sockets.listen_at(self._path), self.answer)
        self._service.url = self._launch.url
        self._server.begin(f"ops-{self._service.name}")
        self._sampling = Sampling(self._routes.sample, self._service.name)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer as every control socket, and `POST /share?processes=N`."""
        if request.path != "/share":
            return self._routes.answer(request)
        processes = request.query.get("processes", "")
        if request.method != "POST" or not processes.isdecimal() or not 1 <= int(processes) <= 1000:
            return Rejected(400, "write POST /share?processes=N").answer
        process_memory.share_among(int(processes))
        return as_json({"processes": int(processes)})

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.end()
        if self._sampling is not None:
            self._sampling.end()
        self._path.unlink(missing_ok=True)
