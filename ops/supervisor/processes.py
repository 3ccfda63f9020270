"""Runs the processes of a supervisor: starts and signals each, and follows its status."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Final

from statehold.ops.http import health
from statehold.ops.process.systemd_status import settled
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor.fleet import Sight
from statehold.ops.supervisor.launch import Launch, ProcessCommand, environment_of, working_directory

#: seconds between two looks at a process, and for one answer
_LOOK_EVERY: Final = 0.5
_ANSWER: Final = 5.0
#: seconds for the code and the settings to be loaded
_TRIAL: Final = 300.0
_SUFFIX: Final = ".process"


class MemberProcess:
    """One process. A thread asks for its status twice a second; any thread may read it."""

    def __init__(self, number: int, line: list[str], launch: Launch, where: Path) -> None:
        """Start it. :raises OSError: the system has no process for it."""
        self.number, self.socket = number, Path(launch.socket)
        #: number of processes that share the memory, as it knows it
        self.among = launch.among
        self._since = time.monotonic()
        self._answered: float | None = None
        #: the newest answer of `/status`
        self.status: dict[str, Any] | None = None
        self._process = _started(line, where, launch.pipe)
        threading.Thread(target=self._follow, name=f"process-{number}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code as a shell reports it; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def drain(self) -> None:
        """Let it leave its group and end; a thread asks it, because it may be stuck."""
        threading.Thread(target=self._drain, name=f"drain-{self.number}", daemon=True).start()

    def tell(self, target: str) -> None:
        """Send it a command on a thread. A process that does not answer gets it with its next start."""
        threading.Thread(target=self._tell, args=(target,), name=f"tell-{self.number}", daemon=True).start()

    def sight(self) -> Sight:
        """Return what the fleet decides by."""
        status, now = self.status, time.monotonic()
        if status is None or self._answered is None:
            return Sight(now - self._since)
        return Sight(
            silent=now - self._answered,
            answered=True,
            running=status["running"],
            alive=health.live(status).ok,
            settled=settled(status),
            failed=frozenset(each["partition"] for each in status["partitions"] if each["phase"] == "failed"),
        )

    def _tell(self, target: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            control_sockets.ask(self.socket, target, _ANSWER, method="POST")

    def _drain(self) -> None:
        try:
            control_sockets.ask(self.socket, "/drain", _ANSWER, method="POST")
        except (OSError, ValueError):
            self.signal(signal.SIGTERM)

    def _follow(self) -> None:
        while self._process.returncode is None:
            with contextlib.suppress(OSError, ValueError):
                self.status = control_sockets.ask(self.socket, "/status", _ANSWER)
                self._answered = time.monotonic()
            time.sleep(_LOOK_EVERY)


class Trial:
    """A process that only loads the new code and settings, before a rolling restart stops any other."""

    def __init__(self, line: list[str], where: Path, pipe: int) -> None:
        """Start it. :raises OSError: the system has no process for it."""
        self._until = time.monotonic() + _TRIAL
        self._process = _started(line, where, pipe)

    def verdict(self) -> str | None:
        """Return why they cannot be loaded, '' if they can; None: it is not known yet."""
        code = self._process.poll()
        if code is None and time.monotonic() >= self._until:
            self.end()
            return f"they were not loaded within {_TRIAL:.0f} s"
        if code is None:
            return None
        return f"exit code {code}; the log names the error" if code else ""

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_ANSWER)


def _started(line: list[str], where: Path, pipe: int) -> subprocess.Popen[bytes]:
    """:raises OSError: the system has no process for it."""
    return subprocess.Popen(
        line,
        cwd=where,
        env=environment_of(os.environ),
        stdin=subprocess.DEVNULL,
        pass_fds=(pipe,),
        start_new_session=True,  # Ctrl-C reaches it once, by the supervisor
    )


class ProcessStarter:
    """Starts the processes of one supervisor. Call it on the main thread."""

    def __init__(self, command: ProcessCommand, *, url: str, cores: list[int] | None) -> None:
        """`url`: of the ops server of all. `cores`: pin each process to one of them; None: to none.

        :raises OSError: there is no directory for their sockets.
        """
        self._command, self._url, self._cores = command, url, cores
        self._directory = control_sockets.own_directory()
        self._where = working_directory(os.environ)
        # Nothing is written: the other end closes when this process ends, also if it is killed.
        self._pipe, self._held = os.pipe()
        self._remove_dead()

    def start(self, number: int, among: int) -> MemberProcess:
        """:raises OSError: the system has no process for it."""
        launch = Launch(self._pipe, str(self._socket(number)), self.url(number), among, self._core(number))
        return MemberProcess(number, self._command.line(launch, number), launch, self._where)

    def trial(self) -> Trial:
        """:raises OSError: the system has no process for it."""
        return Trial(self._command.line(Launch(self._pipe), 1), self._where, self._pipe)

    def url(self, number: int) -> str:
        return f"{self._url}/process/{number}" if self._url else ""

    def name(self, number: int) -> str:
        return self._command.name(number)

    def ended(self, number: int) -> None:
        """Remove what a killed process has left."""
        self._socket(number).unlink(missing_ok=True)

    def _core(self, number: int) -> int | None:
        return self._cores[(number - 1) % len(self._cores)] if self._cores else None

    def _socket(self, number: int) -> Path:
        # Not `.sock`: commands ask the supervisor, which asks its processes.
        return self._directory / f"{os.getpid()}-{number}{_SUFFIX}"

    def _remove_dead(self) -> None:
        """Remove the sockets of processes that were killed together with their supervisor."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError, ValueError):
                try:
                    control_sockets.exchange(path, "/live", _ANSWER)
                except ConnectionRefusedError:
                    path.unlink()
