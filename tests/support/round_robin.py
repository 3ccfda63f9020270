"""A plain TCP proxy in front of several web servers: each connection goes to the next one, also if that is down."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.accepting import HOST, Accepting

_PIECE = 65_536


class RoundRobin:
    """Listens on a free port. It knows no HTTP, tries nothing again, and closes a connection without a server."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._next = itertools.cycle(ports)
        #: connections for which no server listened
        self.refused = 0
        self._accepting = Accepting(self._begin, "round-robin")
        self.port = self._accepting.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.close()

    def _begin(self, client: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(client, next(self._next)), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        with client:
            try:
                server = socket.create_connection((HOST, port))
            except OSError:
                self.refused += 1
                return
            with server:
                answers = threading.Thread(target=_forward, args=(server, client), daemon=True)
                answers.start()
                _forward(client, server)
                answers.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until the end, which the other side gets, too."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
