"""Runs `statehold run --reload`, for development: a child process that restarts when a file changes."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from statehold.errors import UsageError
from statehold.telemetry.log_events import Log

_STEP_MILLISECONDS: Final = 200
_SKIPPED: Final = frozenset({"__pycache__", "site-packages", "node_modules", "build"})


def supervise(arguments: Sequence[str], folder: Path, files: Sequence[Path], patience: float) -> int:
    """Run `statehold ARGUMENTS` until SIGTERM or SIGINT; return the child's exit code. For the main thread.

    Watches the Python and TOML files below `folder`, and `files`. A change stops the child by SIGTERM, so
    that it commits, and by SIGKILL after `patience` seconds. A child that ended by itself restarts at the
    next change.

    :raises UsageError: the extra [cli] is not installed completely.
    """
    try:
        import watchfiles
    except ImportError as error:
        raise UsageError("--reload needs watchfiles: pip install 'statehold[cli]'") from error

    # It logs every change that it sees, which changes the log; a log in `folder` would feed itself.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    stopping = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:  # a second signal may interrupt `set`, and an event's lock is not reentrant
            signal.signal(number, signal.SIG_IGN)
        stopping.set()

    for number in numbers:
        signal.signal(number, stop)
    child = _Child(arguments, patience)
    outside = [file for file in files if not file.is_relative_to(folder)]

    def is_wanted(_change: object, name: str) -> bool:
        path = Path(name)
        return path in outside or (path.is_relative_to(folder) and _is_source(path.relative_to(folder)))

    child.start()
    try:
        for changes in watchfiles.watch(
            folder,
            *outside,
            watch_filter=is_wanted,
            ignore_permission_denied=True,
            stop_event=stopping,
            rust_timeout=_STEP_MILLISECONDS,
            yield_on_timeout=True,
        ):
            if changes:
                child.restart(sorted(Path(path).name for _, path in changes))
            else:
                child.look()
    finally:
        code = child.stop()
    return code


def _is_source(path: Path) -> bool:
    """Return whether it is a Python or TOML file outside environments, caches and hidden folders."""
    skipped = any(part in _SKIPPED or part.startswith(".") for part in path.parts)
    return path.suffix in {".py", ".toml"} and not skipped


class _Child:
    """The process that does the work. It has its own session, so that Ctrl-C reaches it once, by the parent."""

    def __init__(self, arguments: Sequence[str], patience: float) -> None:
        self._command = [sys.executable, "-m", "statehold.ops.cli.entry", *arguments]
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Log()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, start_new_session=True)

    def restart(self, changed: Sequence[str]) -> None:
        self._log.info("reloading", changed=", ".join(dict.fromkeys(changed)))
        self.stop()
        self.start()

    def look(self) -> None:
        """Log it once when the child has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self._log.warning("stopped", exit_code=code, cause="waits for a change of a file")

    def stop(self) -> int:
        """Send SIGTERM, wait, send SIGKILL; return the exit code, or 0 if no child runs."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self._log.warning("stopped", cause=f"killed: it did not stop within {self._patience:g} s")
            process.kill()
            return process.wait()
