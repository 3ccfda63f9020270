"""The client of sd_notify(3): sends datagrams of NAME=value lines to the socket that systemd names.

It does nothing without such a supervisor. Besides systemd, podman and s6
set NOTIFY_SOCKET, for example.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self

#: systemd reads 4 KiB of a datagram; the beginning of a status says most
_LONGEST = 1000


class Notify:
    """Sends to one socket. A message that cannot be sent is dropped, because work must not wait for a supervisor."""

    def __init__(self, address: str) -> None:
        # '@' means the zero byte of an abstract address.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Return None without a supervisor, or for an unsupported kind of address (vsock)."""
        address = environment.get("NOTIFY_SOCKET", "")
        return cls(address) if address[:1] in ("/", "@") and len(address) > 1 else None

    def send(self, **values: object) -> bool:
        """Send a datagram with a line for each value; return False if that fails."""
        lines = [f"{name}={' '.join(str(value).split())[:_LONGEST]}" for name, value in values.items()]
        if not lines:
            return True
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
            return True
        return False

    def close(self) -> None:
        self._socket.close()


def watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the seconds of silence after which the supervisor kills this process; None: unlimited."""
    microseconds, whose = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6
