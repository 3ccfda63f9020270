"""Limits the memory of a contender: with pages of its files by a cgroup of version 2 or by systemd, else its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_ROOT = Path("/sys/fs/cgroup")
#: enters the group and becomes the contender, so that its process id stays
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
#: limits what the process allocates; shared mappings of files, as LMDB's, do not count
_ALLOCATIONS = 'ulimit -d "$0" && exec "$@"'


class MemoryLimit:
    """`prefix` begins the command line of a process with at most this memory.

    `pages` says why pages of its files do not count, and `missing` why it has no limit at all.
    """

    def __init__(self, size: int) -> None:
        self.size, self.prefix, self.pages, self.missing = size, list[str](), "", ""
        self._group: Path | None = None

    def __enter__(self) -> Self:
        self.pages = self._by_cgroup() and self._by_systemd()
        if self.pages:
            self.prefix = ["sh", "-c", _ALLOCATIONS, str(self.size // 1024)]
            self.missing = self._not_enforced()
        return self

    def _not_enforced(self) -> str:
        """Return "" if a process with the limit gets less than it, and no more."""
        for part, gets in ((0.5, True), (1.1, False)):
            program = f"bytearray({round(self.size * part)})"
            tried = subprocess.run(
                [*self.prefix, sys.executable, "-c", program],
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            if (tried.returncode == 0) != gets:
                self.prefix = []
                return f"this system does not enforce RLIMIT_DATA, and {self.pages}"
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            with suppress(OSError):
                self._group.rmdir()

    def _by_cgroup(self) -> str:
        """Make a group below that of this process; return why that is not possible."""
        try:
            lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
            own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))
            if "memory" not in (_ROOT / own / "cgroup.subtree_control").read_text(encoding="ascii").split():
                return "the cgroup of this process gives no memory limit to others below it"
            group = _ROOT / own / f"statehold-bench-{uuid.uuid4().hex[:8]}"
            group.mkdir()
            self._group = group
            (group / "memory.max").write_text(str(self.size), encoding="ascii")
            with suppress(OSError):  # a kernel without swap
                (group / "memory.swap.max").write_text("0", encoding="ascii")
        except (OSError, StopIteration) as error:
            return f"no cgroup of version 2 with a memory limit can be made ({error or 'none is mounted'})"
        self.prefix = ["sh", "-c", _ENTER, str(group)]
        return ""

    def _by_systemd(self) -> str:
        """Let systemd make a scope; return why that is not possible."""
        if shutil.which("systemd-run") is None or not Path("/run/systemd/system").is_dir():
            return "cgroups of version 2 give this process no memory limit, and systemd does not run"
        for manager in ("--user", "--system"):
            scope = ["systemd-run", manager, "--scope", "--quiet", "--collect"]
            command = [*scope, f"--property=MemoryMax={self.size}", "--property=MemorySwapMax=0"]
            tried = subprocess.run([*command, "true"], capture_output=True, check=False, stdin=subprocess.DEVNULL)
            if tried.returncode == 0:
                self.prefix = command
                return ""
        return "systemd makes no scope for this user"
