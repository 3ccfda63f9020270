"""A listener on a free port of this machine, for proxies in tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

HOST: Final = "127.0.0.1"


class Accepting:
    """Hands each connection to `serve`, on the thread that accepts them; listens at once."""

    def __init__(self, serve: Callable[[socket.socket], None], name: str) -> None:
        self._serve = serve
        self._listener = socket.create_server((HOST, 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more; what was accepted stays open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._serve(client)
