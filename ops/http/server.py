"""The ops server of a daemon: where it listens, and its threads."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

from statehold.errors import StartError
from statehold.ops.http.answers import HttpAnswer, HttpRequest
from statehold.ops.http.bounded_server import ENDS_WITHIN, BoundedServer
from statehold.ops.http.console.history import SAMPLE_SECONDS
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.routes import Routes
from statehold.service import Service

_FIRST_PORT: Final = 8470
_PORTS: Final = 100


class OpsServer:
    """Health, metrics, status, console and state queries of a service: `with OpsServer(service): service.run()`.

    Open it before the service starts, because the service reports the URL to its group. `ops.listen = "off"`
    makes it do nothing.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server: BoundedServer | None = None
        self._routes: Routes | None = None
        self._sampling: Sampling | None = None
        #: such as http://127.0.0.1:8470; empty while it is closed or off
        self.url = ""

    def open(self) -> str:
        """Listen; return the URL, or '' if the settings say off.

        :raises StartError: the address cannot be listened on.
        """
        settings = self._service.settings.ops
        if settings.listen == "off":
            return ""
        routes = self._routes = Routes(self._service, RequestGuard(settings, exposed=not settings.local_only))
        self._server = listen(settings.listen, routes.answer)
        self.url = url_of(self._server)
        self._service.url = settings.advertised or reachable(self._server)
        self._server.begin(f"ops-{self._service.name}")
        self._sampling = Sampling(routes.sample, self._service.name)
        return self.url

    def close(self) -> None:
        """Stop answering; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._routes is not None:
            self._routes.close()
        server.end()
        if self._sampling is not None:
            self._sampling.end()
        self.url = ""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sampling:
    """Takes the samples of the console on a thread, until `end`."""

    def __init__(self, sample: Callable[[], object], name: str) -> None:
        """`name`: of the service."""
        self._sample, self._ended = sample, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ops-samples-{name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for the thread."""
        self._ended.set()
        self._thread.join(ENDS_WITHIN)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            with contextlib.suppress(Exception):  # a console without a chart is better than a failing one
                self._sample()


def listen(where: str, answer: Callable[[HttpRequest], HttpAnswer]) -> BoundedServer:
    """Listen at this address; `auto`: at the first free port from 8470 on. :raises StartError: it cannot be used."""
    if where != "auto":
        host, _, given = where.rpartition(":")
        return _bound((host.strip("[]"), int(given)), answer, where)
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with contextlib.suppress(StartError):
            return _bound(("127.0.0.1", port), answer, f"127.0.0.1:{port}")
    return _bound(("127.0.0.1", 0), answer, "127.0.0.1")


def _bound(address: tuple[str, int], answer: Callable[[HttpRequest], HttpAnswer], where: str) -> BoundedServer:
    try:
        return BoundedServer(address, answer)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StartError(f"ops.listen = {where}: cannot listen there: {why}") from error


def url_of(server: BoundedServer) -> str:
    host, port = server.server_address[:2]
    name = f"[{host!s}]" if server.address_family == socket.AF_INET6 else str(host)
    return f"http://{name}:{port}"


def reachable(server: BoundedServer) -> str:
    """Return the URL for other hosts: a wildcard address is replaced by this host's name."""
    host, port = server.server_address[:2]
    return f"http://{socket.getfqdn()}:{port}" if host in ("0.0.0.0", "::") else url_of(server)  # noqa: S104  compared
