"""systemd as PID 1 of pid, mount, cgroup, uts and ipc namespaces of its own, without an effect on the machine.

It may write one directory and reads the rest of the machine. Its only units are those in `<directory>/units`, because
one of the distribution's empties /tmp.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SYSTEMD: Final = Path("/lib/systemd/systemd")
WAIT_SECONDS: Final = 120.0
#: the directory inside the namespaces, where each unit has a /tmp of its own
INSIDE: Final = Path("/run/booted")

_BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/booted
mount --bind "$1" /run/booted
mount --bind /dev/null /dev/console
for each in /tmp /var/tmp /var/lib; do mount -t tmpfs -o mode=1777 tmpfs "$each"; done
umount -R -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -o remount,bind,ro /
export container=statehold SYSTEMD_UNIT_PATH=/run/booted/units SYSTEMD_GENERATOR_PATH=/run/booted/none
export SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/booted/none SYSTEMD_LOG_TARGET=console
exec /lib/systemd/systemd --system --unit=booted.target --log-target=console --log-level=info --show-status=0
"""
_TARGET = "[Unit]\nDescription=a stand-in\nDefaultDependencies=no\n"
#: the targets that ordinary units name
_TARGETS = ("booted", "sysinit", "basic", "shutdown", "network-online", "time-sync", "multi-user", "timers")


class CannotBoot(Exception):
    """systemd did not start; the text is its log."""


class Booted:
    """`with Booted(directory) as machine:`; units are in `directory/units`, its log is `directory/boot.log`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.log = directory, directory / "boot.log"
        self._group = _cgroups() / f"statehold-test-{uuid.uuid4().hex[:8]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        (directory / "units").mkdir(exist_ok=True)

    def unit(self, name: str, text: str) -> None:
        path = self.directory / "units" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        """Run systemctl inside, without a bus."""
        enter = ["nsenter", f"--target={self._init}", "--mount", "--pid", "--cgroup", "--ipc", "--uts"]
        done = subprocess.run(
            [*enter, "systemctl", *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        if check and done.returncode != 0:
            ends = self.systemctl("show", arguments[-1], "--property=Result,ExecMainStatus,StatusText", check=False)
            raise AssertionError(f"{arguments}: {done.stdout}{done.stderr}{ends}{self.tail()}")
        return done.stdout

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of a unit."""
        lines = self.systemctl("show", unit, *(f"--property={name}" for name in names)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def await_property(self, unit: str, name: str, fits: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while not fits(found := self.show(unit, name)[name]):
            assert time.monotonic() < deadline, f"{unit}: {name}={found}{self.tail()}"
            time.sleep(0.2)
        return found

    def tail(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "".join(f"\n--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-25:]) for log in logs)

    def __enter__(self) -> Self:
        for name in _TARGETS:
            self.unit(f"{name}.target", _TARGET)
        self._group.mkdir()
        spaces = "--pid --mount --cgroup --uts --ipc"
        joined = f'echo $$ >"$1/cgroup.procs"; exec unshare {spaces} --fork --kill-child sh -c "$2" sh "$3"'
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", joined, "sh", str(self._group), _BOOT, str(self.directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._await_boot()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _await_boot(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CannotBoot(self.log.read_text())
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
                self._init = int(children[0])
                if "ActiveState=active" in self.systemctl("show", "booted.target", check=False):
                    return
            time.sleep(0.1)

    def _end(self) -> None:
        """Kill the first process of the pid namespace; the kernel then kills all others in it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        deadline = time.monotonic() + WAIT_SECONDS
        while self._group.exists() and time.monotonic() < deadline:
            for path in (*sorted(self._group.glob("**/"), key=lambda each: -len(str(each))), self._group):
                with suppress(OSError):
                    path.rmdir()
            time.sleep(0.05)


def _cgroups() -> Path:
    """Where the second version of cgroups is."""
    hybrid = Path("/sys/fs/cgroup/unified")
    return hybrid if hybrid.is_dir() else Path("/sys/fs/cgroup")


def why_not() -> str:
    """Why it cannot be tried here; '' where it can."""
    if str(Path(__file__).resolve()).startswith("/tmp/"):
        return "the tree lies in /tmp, which is private to those inside"
    if os.geteuid() != 0:
        return "namespaces and PID 1 need root"
    missing = [each for each in ("unshare", "nsenter", "systemctl") if shutil.which(each) is None]
    if missing or not SYSTEMD.exists():
        return f"not installed: {', '.join(missing) or SYSTEMD}"
    if not (_cgroups() / "cgroup.procs").exists():
        return "no cgroup2 file system is mounted"
    return ""
