"""A real PostgreSQL server for development and tests: `with Postgres() as server: server.url`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from statehold.dev.errors import DevError
from statehold.dev.ports import HOST, free_ports
from statehold.dev.process import DeathGuard

_SECONDS: Final = 120.0
#: for a temporary database: it survives a kill of its processes, not a crash of the machine
_SETTINGS: Final = ("fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=32MB")


def missing() -> str:
    """Return why no server can run here, or ''."""
    if _program("initdb") is None or _program("postgres") is None:
        return "PostgreSQL is not installed: sudo apt-get install postgresql"
    if os.getuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and this system has no user postgres"
    return ""


class Postgres:
    """A server with a directory and a port of its own. Where this process is root, it runs as another user.

    Its processes end with `stop`, and when this process ends in any way. Raises `DevError` when PostgreSQL is not
    installed or does not start.
    """

    def __init__(self, settings: Sequence[str] = ()) -> None:
        if why := missing():
            raise DevError(why)
        self.port = free_ports(1)[0]
        self._settings = (*_SETTINGS, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="statehold-postgres-"))
        self._user = _user() if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        made = self._run("initdb", "--auth=trust", "--no-sync", "-U", "statehold", "-D", str(self._data))
        if made.returncode:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise DevError(f"initdb: {made.stdout.decode(errors='replace')[-500:]}")

    @property
    def url(self) -> str:
        """The address for libpq."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return the address with another port, such as that of a proxy."""
        return f"postgresql://statehold@{HOST}:{port}/postgres"

    def start(self) -> None:
        """Block until the server answers."""
        for _ in range(5):  # another process may take a free port before the server does
            self._spawn()
            if self._answers():
                return
            self.stop()
            self.port = free_ports(1)[0]
        raise DevError(f"PostgreSQL does not start: {self.log()[-500:]}")

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT stops at once, without a checkpoint, as a crash does; SIGINT ends sessions and stops cleanly."""
        if self._guard is not None:  # before the system can give the pid to another process
            self._guard.cancel()
            self._guard = None
        process, self._process = self._process, None
        if process is not None:
            self._signal(process, signal.SIGCONT)
            process.send_signal(how)
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self._signal(process, signal.SIGKILL)
                process.wait(_SECONDS)

    def pause(self) -> None:
        """SIGSTOP all its processes until `resume`."""
        assert self._process is not None
        self._signal(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        assert self._process is not None
        self._signal(self._process, signal.SIGCONT)

    def log(self) -> str:
        """Return the server's log."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _spawn(self) -> None:
        settings = [
            *self._settings,
            f"port={self.port}",
            f"listen_addresses={HOST}",
            f"unix_socket_directories={self._folder}",
        ]
        options = [part for setting in settings for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_program("postgres")), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the program that uses it
                **self._as_user(),
            )
        self._guard = DeathGuard(self._process.pid, self._folder)

    def _answers(self) -> bool:
        deadline = time.monotonic() + _SECONDS
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline:
            asked = self._run("psql", "-h", HOST, "-p", str(self.port), "-U", "statehold", "-c", "select 1", "postgres")
            if asked.returncode == 0:
                return True
            time.sleep(0.05)
        return False

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(_program(program)), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            timeout=_SECONDS,
            check=False,
            **self._as_user(),
        )

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Signal the server and its children, because each child leads a session of its own."""
        if process.poll() is not None:
            return  # another process may have its pid by now
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        for pid in (process.pid, *pids):  # the parent first, because it would replace its children
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _program(name: str) -> Path | None:
    """Return the path of a server program; Debian keeps each version's programs in a folder of their own."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    return Path(found) if found else None


def _user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
