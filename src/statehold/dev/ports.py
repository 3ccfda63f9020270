"""Free ports, and the process that holds a port or a data directory."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from statehold.dev.errors import InUse
from statehold.dev.process import command_of

HOST = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections, so that a killed broker finds its own
# port free again.
LOW, HIGH = 12_000, 32_000
_PROC = Path("/proc")


def is_free(port: int) -> bool:
    """Return whether a server can listen on `port` of the loopback address now."""
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
    """Return `count` different free ports, at random so that clusters started in parallel choose different ones."""
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


def require_unheld(data: Path) -> None:
    """Raise `InUse`, naming pid and command, when a broker runs on the directory `data`."""
    pid = holder_of_file(data / ".lock")  # every broker keeps this file of its open
    if pid is not None:
        raise InUse(
            f"directory {data.parent.parent} is held by pid {pid} ({command_of(pid)}): "
            "`statehold dev down` stops a broker of `statehold dev up`, or choose another directory"
        )


def holder_of_port(port: int) -> int | None:
    """Return the pid that listens on `port`; None when it is another user's process, which the system hides."""
    if (_PROC / "net" / "tcp").exists():
        return _holder_of_link({f"socket:[{inode}]" for inode in _listening_inodes(port)})
    return _lsof("-nP", f"-iTCP:{port}", "-sTCP:LISTEN")


def holder_of_file(path: Path) -> int | None:
    """Return a pid that has `path` open, None when no visible process has."""
    if not path.exists():
        return None
    return _holder_of_link({str(path.resolve())}) if _PROC.exists() else _lsof("--", str(path))


def _holder_of_link(targets: Iterable[str]) -> int | None:
    wanted = set(targets)
    for process in _PROC.glob("[0-9]*"):
        try:
            if any(_target(fd) in wanted for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return None


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:  # this one was closed meanwhile; the caller goes through the others
        return ""


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in (_PROC / "net" / "tcp", _PROC / "net" / "tcp6"):
        for line in table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                inodes.append(fields[9])
    return inodes


def _lsof(*arguments: str) -> int | None:
    if shutil.which("lsof") is None:
        return None
    pids = subprocess.run(["lsof", "-t", *arguments], capture_output=True, text=True, check=False).stdout.split()
    return int(pids[0]) if pids else None
