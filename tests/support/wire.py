"""A TCP proxy in front of one server that breaks a connection at a text: before it, after its answer, or late."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Literal, Self

from tests.support.accepting import HOST, Accepting

#: the text is not passed on; it is, and its answer is swallowed; it is passed on by `release` only
How = Literal["before", "after", "held"]


class Wire:
    """Listens on a free port at once. Resets the client's connection each time it applies a fault."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.struck = threading.Event()
        self._lock = threading.Lock()
        self._plan: tuple[bytes, How] | None = None
        self._held: list[tuple[socket.socket, bytes]] = []
        #: servers' sides of connections whose next answer goes nowhere
        self._swallowing: set[socket.socket] = set()
        self._accepting = Accepting(self._begin, "wire")
        self.port = self._accepting.port

    def strike(self, text: bytes, how: How) -> None:
        """Apply the fault when a client next sends this text."""
        self.struck.clear()
        with self._lock:
            self._plan = text, how

    def release(self) -> None:
        """Deliver the held text."""
        held, self._held = self._held, []
        for server, piece in held:
            with contextlib.suppress(OSError):
                server.sendall(piece)
            _shut(server)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.close()
        for server, _ in self._held:
            server.close()

    def _begin(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection((HOST, self.upstream), timeout=30)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        threading.Thread(target=self._up, args=(client, server), daemon=True).start()
        threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(65536):
                how = self._planned(piece)
                if how is None:
                    server.sendall(piece)
                    continue
                self._strike(client, server, piece, how)
                return
        _shut(server)

    def _planned(self, piece: bytes) -> How | None:
        with self._lock:
            if self._plan is None or self._plan[0] not in piece:
                return None
            how, self._plan = self._plan[1], None
            return how

    def _strike(self, client: socket.socket, server: socket.socket, piece: bytes, how: How) -> None:
        if how == "after":  # struck once it has answered
            self._swallowing.add(server)
            _reset(client)
            server.sendall(piece)
            return
        _reset(client)
        if how == "held":
            self._held.append((server, piece))
        else:
            _shut(server)
        self.struck.set()

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(65536):
                if server in self._swallowing:
                    self.struck.set()
                    _shut(server)
                    break
                client.sendall(piece)
        _shut(client)


def _reset(each: socket.socket) -> None:
    """Close with RST instead of FIN."""
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RD)
    each.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
