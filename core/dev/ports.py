"""Free ports, and who holds those that are not free."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from pathlib import Path

from holdfast.dev.errors import InUse
from holdfast.dev.process import command_of

HOST = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections: a broker that was killed finds its own
# port free again.
LOW, HIGH = 12_000, 32_000


def is_free(port: int) -> bool:
    """Tell whether a server could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does: TIME_WAIT is no obstacle
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
    pid = holder_of(port)
    holder = f"pid {pid} ({command_of(pid)})" if pid else "a process of another user"
    raise InUse(f"port {port} is held by {holder}: {remedy}")


def holder_of(port: int) -> int | None:
    """Return the pid that listens on `port`; None when the system does not tell (another user's process)."""
    if Path("/proc/net/tcp").exists():
        return _holder_by_proc(port)
    if shutil.which("lsof"):
        command = ["lsof", "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        return int(told[0]) if told else None
    return None


def _holder_by_proc(port: int) -> int | None:
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in wanted for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return None


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                inodes.append(fields[9])
    return inodes
