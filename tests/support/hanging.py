"""A forwarder to a server of this machine that can stop answering: clients connect and get no answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.accepting import HOST, Accepting


class Door:
    """Clients connect to `address`. It forwards everything to `target`; after `shut` no answer comes back."""

    def __init__(self, target: tuple[str, int] | None) -> None:
        self._target = target
        self._shut = threading.Event()
        self._sockets: list[socket.socket] = []
        #: set when a client connected and got no answer
        self.knocked = threading.Event()
        if target is None:
            self.shut()
        self._accepting = Accepting(self._begin, "door")
        self.address = HOST, self._accepting.port

    def shut(self) -> None:
        self._shut.set()

    def close(self) -> None:
        self._accepting.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _begin(self, client: socket.socket) -> None:
        self._sockets.append(client)
        threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server = None if self._target is None or self._shut.is_set() else socket.create_connection(self._target)
            if server is not None:
                self._sockets.append(server)
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            while data := client.recv(65_536):
                if self._shut.is_set() or server is None:
                    self.knocked.set()
                else:
                    server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if not self._shut.is_set():
                    client.sendall(data)


@contextmanager
def door(target: tuple[str, int] | None = None) -> Iterator[Door]:
    """Open a door to `target`; without one it never answers."""
    made = Door(target)
    try:
        yield made
    finally:
        made.close()
