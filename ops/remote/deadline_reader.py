"""Reads a connection until a deadline."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class DeadlineReader(io.RawIOBase):
    """A socket's timeout counts for each read, so that a slow sender could hold a reader; a deadline counts for all."""

    def __init__(self, connection: socket.socket, seconds: float, *, send_timeout: float | None = None) -> None:
        self._connection, self._send_timeout = connection, send_timeout
        #: in monotonic seconds
        self.deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """:raises TimeoutError: the deadline has passed."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side is too slow")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            if self._send_timeout is not None:
                self._connection.settimeout(self._send_timeout)
