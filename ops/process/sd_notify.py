"""The client's side of sd_notify(3): datagrams of NAME=value lines to the socket that systemd names.

Only the standard library, and nothing happens where no supervisor asks. systemd is not the only one that does: so do
podman, s6 and whatever else sets NOTIFY_SOCKET.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self

#: systemd reads 4 KiB of a datagram; of a status that it shows, the beginning says most
_LONGEST = 1000


class Notify:
    """Sends to one socket. A message that cannot be sent is lost: the work never waits for its supervisor."""

    def __init__(self, address: str) -> None:
        # '@' stands for the zero byte of an abstract address.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """None where nobody listens, or by a kind of address (vsock) that this does not speak."""
        address = environment.get("NOTIFY_SOCKET", "")
        return cls(address) if address[:1] in ("/", "@") and len(address) > 1 else None

    def send(self, **values: object) -> bool:
        """One datagram, a line for each value; False when it could not be sent."""
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
    """How long this process may be silent before its supervisor kills it; None: for ever."""
    microseconds, whose = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6
