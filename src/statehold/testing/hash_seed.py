"""Runs a past in a process with another hash seed, where sets of text have another order.

The process is started at the first use and lives until this one ends. It imports the handler's module once, and handles
each past in a fork of its own, so that no past sees what another one has left behind.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, BinaryIO, Final

from statehold.testing.rerun import Past, Results

#: seconds for one past; after that no other one is tried in this process
_LONGEST: Final = 60.0
_LENGTH: Final = 8
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from statehold.testing.hash_seed import serve; serve()"
)


def run_elsewhere(past: Past, seed: int) -> Results | None:
    """Handle a past one by one where the hash seed is `seed`; None if that process cannot import the handler."""
    module = sys.modules.get(past.factory.__module__)
    if module is None or module.__name__ == "__main__":
        return None
    try:
        data = pickle.dumps(past)
    except Exception:  # noqa: BLE001 - a handler of a function's body, and much else, has no name to import
        return None
    request = pickle.dumps((module.__name__, getattr(module, "__file__", None), data))
    with _lock:
        answer = _process(seed).ask(request)
    if not answer:
        return None
    try:
        results: Results = pickle.loads(answer)  # noqa: S301 - the answer of the process below
    except Exception:  # noqa: BLE001 - rows of a class that cannot be found here
        return None
    return results


class _Process:
    """A process with this hash seed, which handles pasts."""

    def __init__(self, seed: int) -> None:
        self.owner = os.getpid()
        self._too_slow = False
        paths = json.dumps([os.path.abspath(each) for each in sys.path])
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, paths],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def usable(self) -> bool:
        return self.owner == os.getpid() and (self._too_slow or self._child.poll() is None)

    def ask(self, request: bytes) -> bytes:
        """Return what the process answers; empty if it cannot."""
        if self._too_slow:
            return b""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        deadline = monotonic() + _LONGEST
        try:
            self._child.stdin.write(len(request).to_bytes(_LENGTH, "big") + request)
            self._child.stdin.flush()
            size = int.from_bytes(self._read(_LENGTH, deadline), "big")
            return self._read(size, deadline)
        except TimeoutError:
            self._too_slow = True
        except (OSError, EOFError):
            pass
        self.close()
        return b""

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._child.stdout is not None
        file, found = self._child.stdout.fileno(), b""
        while len(found) < size:
            if not select.select([file], [], [], max(0.0, deadline - monotonic()))[0]:
                raise TimeoutError
            data = os.read(file, size - len(found))
            if not data:
                raise EOFError
            found += data
        return found

    def close(self) -> None:
        """End the process."""
        if self.owner != os.getpid():
            return
        with suppress(OSError):
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


_lock = threading.Lock()
_processes: dict[int, _Process] = {}


def _process(seed: int) -> _Process:
    found = _processes.get(seed)
    if found is None or not found.usable:
        if found is None:
            atexit.register(_close, seed)
        else:
            found.close()
        found = _processes[seed] = _Process(seed)
    return found


def _close(seed: int) -> None:
    _processes[seed].close()


def serve() -> None:
    """Answer the requests of standard input until it ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a handler prints is no answer
    while length := requests.read(_LENGTH):
        name, file, data = pickle.loads(requests.read(int.from_bytes(length, "big")))  # noqa: S301 - from the parent
        answer = os.fork() if _import(name, file) else -1
        if answer == 0:
            _answer(data, answers)
        if answer < 0 or os.waitpid(answer, 0)[1]:
            _write(answers, b"")


def _answer(data: bytes, answers: BinaryIO) -> None:
    """Handle a past in this fork, and end it."""
    code = 1
    try:
        past: Past = pickle.loads(data)  # noqa: S301 - from the parent
        answer = pickle.dumps(past.run([1]))
        code = 0
        _write(answers, answer)
    finally:
        os._exit(code)


def _write(answers: BinaryIO, answer: bytes) -> None:
    answers.write(len(answer).to_bytes(_LENGTH, "big") + answer)
    answers.flush()


def _import(name: str, file: str | None) -> bool:
    """Import the module by its name, else from its file; return whether it could be."""
    if name in sys.modules:
        return True
    with suppress(BaseException):  # a module may raise anything, also pytest's Skipped
        found: Any = importlib.import_module(name)
        if file is None or os.path.samefile(found.__file__ or "", file):
            return True
    try:
        spec = importlib.util.spec_from_file_location(name, file or "")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except BaseException:  # noqa: BLE001
        sys.modules.pop(name, None)
        return False
    return True
