"""Who holds a port or a file: asked when it is not free, to say so. Nothing here signals anybody."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from statehold.dev.errors import InUse
from statehold.dev.process import command_of

_PROC = Path("/proc")


def holder_of_port(port: int) -> int | None:
    """Return the pid that listens on `port`; None when the system does not tell (another user's process)."""
    if (_PROC / "net" / "tcp").exists():
        return _holder_of_link({f"socket:[{inode}]" for inode in _listening_inodes(port)})
    return _lsof("-nP", f"-iTCP:{port}", "-sTCP:LISTEN")


def holder_of_file(path: Path) -> int | None:
    """Return a pid that has `path` open, None when nobody has (or nobody whom we may see)."""
    if not path.exists():
        return None
    return _holder_of_link({str(path.resolve())}) if _PROC.exists() else _lsof("--", str(path))


def require_unheld(data: Path) -> None:
    """Raise `InUse`, naming pid and command, when a broker runs on the directory `data`."""
    pid = holder_of_file(data / ".lock")  # every broker keeps this file of its open
    if pid is not None:
        raise InUse(
            f"directory {data.parent.parent} is held by pid {pid} ({command_of(pid)}): "
            "`statehold dev down` stops a broker of `statehold dev up`, or choose another directory"
        )


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
    except FileNotFoundError:  # closed meanwhile; the others are still to be looked at
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
    told = subprocess.run(["lsof", "-t", *arguments], capture_output=True, text=True, check=False).stdout.split()
    return int(told[0]) if told else None
