"""Free ports, and who holds those that are not free."""

from __future__ import annotations

import random
import socket

from statehold.dev.errors import InUse
from statehold.dev.holder import holder_of_port
from statehold.dev.process import command_of

HOST = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections: a broker that was killed finds
# its own port free again.
LOW, HIGH = 12_000, 32_000


def is_free(port: int) -> bool:
    """Tell whether a server could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        # As the broker does: connections in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports, at random so that clusters started side by side do not meet."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.randrange(LOW, HIGH)
        if port not in chosen and is_free(port):
            chosen.append(port)
    return chosen


def require_free(port: int, remedy: str) -> None:
    """Raise `InUse`, naming the holder's pid and command, unless `port` is free."""
    if is_free(port):
        return
    pid = holder_of_port(port)
    holder = f"pid {pid} ({command_of(pid)})" if pid else "a process of another user"
    raise InUse(f"port {port} is held by {holder}: {remedy}")
