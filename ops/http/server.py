"""The door of a daemon: the standard library's HTTP server in threads of its own, bounded in every direction.

It answers while the manager, the workers or a host application's event loop are stuck: it needs none of them.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import statehold
from statehold.errors import StartError
from statehold.ops.http.answers import Answer, Refused, Request, fields_of
from statehold.ops.http.routes import Routes
from statehold.service import Service

_FIRST_PORT: Final = 8470
_PORTS: Final = 100
#: seconds for a whole request to arrive, the silence before it included, and for its answer to be read
_PATIENCE: Final = 10.0
#: seconds that a newcomer waits for the place of one that was cut off
_CUT: Final = 1.0
_CONNECTIONS: Final = 32
_PATH_BYTES: Final = 4096
_SAMPLE_SECONDS: Final = 2.0


class OpsServer:
    """Health, metrics, status, console and state queries of a service: `with OpsServer(service): service.run()`.

    Open it before the service starts, so that the group is told where this instance answers. `ops.listen = "off"`
    makes it do nothing.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server: _Server | None = None
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        #: such as http://127.0.0.1:8470; empty while it is closed or off
        self.url = ""

    def open(self) -> str:
        """Listen; returns the URL, '' when the settings say off.

        :raises StartError: the address cannot be listened on.
        """
        settings = self._service.settings.ops
        if settings.listen == "off":
            return ""
        routes = Routes(self._service, exposed=not settings.local_only)
        self._server = _listen(settings.listen, routes)
        self.url = _url(self._server)
        self._service.url = settings.advertised or _reachable(self._server)
        for name, run in (("ops", self._server.serve_forever), ("ops-samples", lambda: self._sample(routes))):
            thread = threading.Thread(target=run, name=f"{name}-{self._service.name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self.url

    def close(self) -> None:
        """Stop answering; may be called twice."""
        self._closed.set()
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for thread in self._threads:
            thread.join()
        self.url = ""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample(self, routes: Routes) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            with contextlib.suppress(Exception):  # a console without a line is better than none
                routes.sample()


def _listen(where: str, routes: Routes) -> _Server:
    if where != "auto":
        host, _, given = where.rpartition(":")
        return _Server((host.strip("[]"), int(given)), routes, where)
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with contextlib.suppress(StartError):
            return _Server(("127.0.0.1", port), routes, f"127.0.0.1:{port}")
    return _Server(("127.0.0.1", 0), routes, "127.0.0.1")


def _url(server: _Server) -> str:
    host, port = server.server_address[:2]
    name = f"[{host!s}]" if server.address_family == socket.AF_INET6 else str(host)
    return f"http://{name}:{port}"


def _reachable(server: _Server) -> str:
    """As others reach it: a wildcard address is no address, this host's name is."""
    host, port = server.server_address[:2]
    return f"http://{socket.getfqdn()}:{port}" if host in ("0.0.0.0", "::") else _url(server)  # noqa: S104  compared


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], routes: Routes, where: str) -> None:
        self.routes, self._room = routes, threading.BoundedSemaphore(_CONNECTIONS)
        #: each open connection, oldest first, and whether we wait for it (True) or it for us
        self._open: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StartError(f"ops.listen = {where}: cannot listen there: {why}") from error

    def server_bind(self) -> None:
        """As the base, without asking the name servers who we are: that can take seconds."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Beyond the limit the oldest that still owes its request is cut off: slow ones must not keep a probe out."""
        if not self._room.acquire(blocking=False):
            self._cut_off_one()
            if not self._room.acquire(timeout=_CUT):
                self.shutdown_request(request)
                return
        self.waits_for(request, waiting=True)
        super().process_request(request, client_address)

    def waits_for(self, connection: socket.socket, *, waiting: bool) -> None:
        with self._lock:
            self._open[connection] = waiting

    def _cut_off_one(self) -> None:
        with self._lock:
            oldest = next((each for each, waiting in self._open.items() if waiting), None)
            if oldest is not None:
                self._open[oldest] = False  # not twice
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and ends

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self._room.release()

    def server_close(self) -> None:
        """Clients keep their connections: without their end a closed server would go on answering them."""
        super().server_close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):  # it has just ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is its own problem."""


class _Arriving(io.RawIOBase):
    """Reads a connection until a moment, however little comes at a time: a time-out for each byte is none."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.until = connection, time.monotonic() + _PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """:raises TimeoutError: the moment has come."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"statehold/{statehold.__version__}"
    sys_version = ""
    timeout = _PATIENCE
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._arriving = _Arriving(self.connection)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        self._arriving.until = time.monotonic() + _PATIENCE
        self.server.waits_for(self.connection, waiting=True)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.waits_for(self.connection, waiting=False)
        self._send(self._answer())

    do_HEAD = do_GET  # noqa: N815  the base looks for this name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base refuses: other methods, and lines that are no HTTP."""
        self.close_connection = True
        if not hasattr(self, "command") or self.command is None:
            self.command, self.request_version = "", self.protocol_version
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._send(Refused(405, "only GET and HEAD", {"Allow": "GET, HEAD"}).answer)
        else:
            self._send(Refused(code, message or HTTPStatus(code).phrase).answer)

    def _answer(self) -> Answer:
        if self.request_version == "HTTP/0.9":  # its answers have no headers, so none of those that protect
            return Refused(505, "HTTP/1.0 or HTTP/1.1").answer
        if len(self.path) > _PATH_BYTES:
            return Refused(414, f"a path of more than {_PATH_BYTES} bytes").answer
        lengths = self.headers.get_all("Content-Length", [])
        if any(length != "0" for length in lengths) or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # what follows is the body, which nobody reads
            return Refused(413, "a body is not expected").answer
        try:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            return self.server.routes.answer(Request(self.command, parts.path, fields_of(parts.query), headers))
        except Refused as refused:
            return refused.answer
        except ValueError:
            return Refused(400, "this is no path").answer

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.all_headers():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: no line for each of them."""
