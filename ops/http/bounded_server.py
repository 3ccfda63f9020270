"""The HTTP server of ops: the standard library's, in threads of its own, with a limit on everything a client may use.

It answers while the manager, the workers or a host application's event loop are stuck, because it needs none of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import statehold
from statehold.ops.http.answers import EventStream, HttpAnswer, HttpRequest, Rejected, fields_of
from statehold.ops.remote.deadline_reader import DeadlineReader

#: seconds for a whole request to arrive, the silence before it included, and for its answer to be read
_PATIENCE: Final = 10.0
#: seconds that a new connection waits for the place of one that was cut off
_CUT: Final = 1.0
_CONNECTIONS: Final = 32
_PATH_BYTES: Final = 4096
#: bytes of a path and what is behind its ?: a position of 2,000 partitions, less than the base's line of a request
_TARGET_BYTES: Final = 60_000
#: seconds that a thread of a server may take to end
ENDS_WITHIN: Final = 10.0


#: of this process
_servers: WeakSet[BoundedServer] = WeakSet()


class BoundedServer(ThreadingMixIn, HTTPServer):
    """Passes each GET and HEAD to `answer`; on a listening Unix socket POST, too."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, where: tuple[str, int] | socket.socket, answer: Callable[[HttpRequest], HttpAnswer]) -> None:
        """:raises OSError: the address cannot be used. :raises OverflowError: the port is out of range."""
        self.answer, self._room = answer, threading.BoundedSemaphore(_CONNECTIONS)
        #: each open connection, oldest first, and whether the server waits for it (True) or it for the server
        self._open: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()
        #: set by `begin`
        self._thread: threading.Thread
        _servers.add(self)
        if isinstance(where, socket.socket):
            super().__init__(("", 0), _CommandHandler, bind_and_activate=False)
            self.socket.close()
            self.socket = where
        else:
            self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
            super().__init__(where, _Handler)

    def server_bind(self) -> None:
        """Bind without the base's question to the name servers, which can take seconds."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Beyond the limit, cut off the oldest incomplete request, because slow clients must not block probes."""
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
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up and ends

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self._room.release()

    def begin(self, name: str) -> None:
        """Answer on a thread of this name, until `end`."""
        self._thread = threading.Thread(target=self.serve_forever, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop answering, and wait for the thread."""
        self.shutdown()
        self.server_close()
        self._thread.join(ENDS_WITHIN)

    def shutdown(self) -> None:
        """Wake the thread of `serve_forever`, which otherwise looks twice a second, and wait for its end."""
        with contextlib.suppress(OSError):  # not on every system; then it takes half a second
            self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def server_close(self) -> None:
        """End kept-alive connections as well; otherwise a closed server would still answer them."""
        super().server_close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):  # it has just ended
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"statehold/{statehold.__version__}"
    sys_version = ""
    timeout = _PATIENCE
    #: an answer leaves in one write, and at once: otherwise a kept-alive client waits 40 ms for the second half (Nagle)
    wbufsize = -1
    disable_nagle_algorithm = True
    server: BoundedServer
    methods: ClassVar = "GET, HEAD"

    def setup(self) -> None:
        super().setup()
        self._arriving = DeadlineReader(self.connection, _PATIENCE, send_timeout=_PATIENCE)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        self._arriving.deadline = time.monotonic() + _PATIENCE
        self.server.waits_for(self.connection, waiting=True)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.waits_for(self.connection, waiting=False)
        self._send(self._answer())

    do_HEAD = do_GET  # noqa: N815  the base calls this name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base rejects: other methods, and lines that are not HTTP."""
        self.close_connection = True
        if not hasattr(self, "command") or self.command is None:
            self.command, self.request_version = "", self.protocol_version
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._send(Rejected(405, f"only {self.methods}", {"Allow": self.methods}).answer)
        else:
            self._send(Rejected(code, message or HTTPStatus(code).phrase).answer)

    def _answer(self) -> HttpAnswer:
        if self.request_version == "HTTP/0.9":  # its answers carry no headers, and so none of the protecting ones
            return Rejected(505, "HTTP/1.0 or HTTP/1.1").answer
        if len(self.path.partition("?")[0]) > _PATH_BYTES or len(self.path) > _TARGET_BYTES:
            limits = f"a path of more than {_PATH_BYTES} bytes, or of {_TARGET_BYTES} with what is behind the ?"
            return Rejected(414, limits).answer
        lengths = self.headers.get_all("Content-Length", [])
        if any(length != "0" for length in lengths) or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # the body that follows is not read
            return Rejected(413, "a body is not expected").answer
        try:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            return self.server.answer(HttpRequest(self.command, parts.path, fields_of(parts.query), headers))
        except Rejected as refused:
            return refused.answer
        except ValueError:
            return Rejected(400, "not a path").answer

    def _send(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        for name, value in answer.all_headers():
            self.send_header(name, value)
        self.end_headers()
        if answer.stream is not None:
            self.close_connection = True  # its end is the end of the body
            self._send_stream(answer.stream)
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    def _send_stream(self, stream: EventStream) -> None:
        """Send pieces until the end, or until the reader is gone or takes none for the time of an answer."""
        try:
            self.wfile.flush()
            while self.command != "HEAD" and (piece := stream.take()) is not None:
                self.wfile.write(piece)
                self.wfile.flush()
        finally:
            stream.close()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because probes come every few seconds."""


class _CommandHandler(_Handler):
    disable_nagle_algorithm = False  # a Unix socket has none
    methods: ClassVar = "GET, HEAD, POST"
    do_POST = _Handler.do_GET  # noqa: N815  the base calls this name


def _close_copies() -> None:
    """In a forked child, close the copies of the sockets: they would keep the port of a process that has ended."""
    for server in _servers:
        server.socket.close()


os.register_at_fork(after_in_child=_close_copies)
