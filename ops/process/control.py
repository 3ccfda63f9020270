"""How a running service is asked, on its own machine: a JSON line in, a JSON line out, over a Unix socket.

`statehold run` opens one for its service; an embedded service may do the same: `with Control(service): ...`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import statehold
from statehold.errors import StateholdError, UsageError
from statehold.ops.process.stacks import stacks
from statehold.ops.remote import control_sockets
from statehold.service import Service

_PATIENCE: Final = 1.0
_LINE_BYTES: Final = 65_536
_TAKEN_UP_SECONDS: Final = 2.0
_GLANCE: Final = 0.005


class Control:
    """Answers for one service from a thread of its own, so that it answers while everything else is stuck.

    The socket has mode 0600: whoever may open it may ask. It is removed by `close`; what a killed process
    leaves is removed by whoever finds it.
    """

    def __init__(self, service: Service, directory: Path | None = None) -> None:
        self._service = service
        self._directory = directory
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name=f"control-{service.name}", daemon=True)
        self._listener: socket.socket | None = None
        #: where it listens; empty until `open`
        self.path = Path()

    def open(self) -> Path:
        """Listen; returns the socket's path.

        :raises OSError: the directory or the socket cannot be made.
        """
        directory = control_sockets.own_directory() if self._directory is None else self._directory
        self._listener, self.path = control_sockets.listen(directory, self._service.names.group)
        self._thread.start()
        return self.path

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        if self._listener is None:
            return
        self._wake.send(b"x")
        self._thread.join()
        self._listener.close()
        self._listener = None
        self._wake.close()
        self._woken.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The control thread

    def _serve(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while all(key.fileobj is not self._woken for key, _ in selector.select()):
                # A client that goes away, says too much, or nothing in time, is its own problem.
                with contextlib.suppress(OSError, ValueError):
                    self._serve_one(self._listener)

    def _serve_one(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            line = control_sockets.read_line(connection, _LINE_BYTES, time.monotonic() + _PATIENCE)
            connection.settimeout(_PATIENCE)
            connection.sendall(self._answer(line))

    def _answer(self, line: bytes) -> bytes:
        try:
            answer = {"ok": True, **self._do(json.loads(line))}
        except (StateholdError, ValueError, TypeError) as error:
            answer = {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - the asker is told; the thread must answer the next one
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        return json.dumps(answer, default=str).encode() + b"\n"

    def _do(self, request: Any) -> dict[str, Any]:
        match request:
            case {"command": "status"}:
                return self._status()
            case {"command": "retry", "partition": int(partition)}:
                return self._retry(partition)
            case {"command": "retry", "partition": None}:
                return self._retry(None)
            case {"command": "drain"}:
                # It blocks, and this thread tells how far it is.
                threading.Thread(target=self._service.drain, name="drain", daemon=True).start()
                return self._status()
            case {"command": "stacks"}:
                return {"pid": os.getpid(), "stacks": stacks()}
            case _:
                raise UsageError('ask {"command": "status"} or {"command": "retry", "partition": 3}, one line of JSON')

    def _status(self) -> dict[str, Any]:
        return {
            "name": self._service.name,
            "pid": os.getpid(),
            "version": statehold.__version__,
            "brokers": self._service.settings.kafka.bootstrap_servers,
            **self._service.status(),
        }

    def _retry(self, chosen: int | None) -> dict[str, Any]:
        """Only failed partitions are asked: a retry that is not wanted would be kept for the next failure."""
        phases = self._phases()
        if chosen is not None and chosen not in phases:
            raise UsageError(f"partition {chosen} is not here")
        failed = [p for p, phase in phases.items() if phase == "failed" and chosen in (None, p)]
        for partition in failed:
            self._service.retry(partition)
        # The caller looks at the outcome next: a failure that it sees then must be a new one.
        deadline = time.monotonic() + _TAKEN_UP_SECONDS
        while time.monotonic() < deadline and any(self._phases().get(p) == "failed" for p in failed):
            time.sleep(_GLANCE)
        return {"retried": failed, **self._status()}

    def _phases(self) -> dict[int, str]:
        return {each["partition"]: each["phase"] for each in self._service.status()["partitions"]}
