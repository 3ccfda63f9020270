"""Control sockets: their directories, making one, finding processes, sending a request."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final

from statehold.ops.remote.deadline_reader import DeadlineReader

#: a path of a Unix socket has 108 bytes on Linux, 104 on macOS, one of them for the end
_PATH_BYTES: Final = 100
_SUFFIX: Final = ".sock"
#: a dot and the digest that ends a shortened name
_SHORTENED: Final = 9
_ANSWER_BYTES: Final = 16_000_000
_GLANCE: Final = 0.01
_TOO_LONG: Final = "its path is too long for a socket"


def own_directory() -> Path:
    """Return the directory for this process's sockets; create it if it is missing.

    systemd's RUNTIME_DIRECTORY, else `statehold` in XDG_RUNTIME_DIR or, for root, in /run, else
    `statehold-<uid>` in the temporary directory or in /tmp, which all users share. One whose path leaves no room for a
    socket's name is passed over.

    :raises PermissionError: none of them can be used; the text names the reasons.
    """
    refused = []
    for place in _candidates():
        if _room(place, _tail(1)) < _SHORTENED:
            refused.append(f"{place}: {_TOO_LONG}")
            continue
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            found = place.lstat()
        except OSError as error:
            refused.append(f"{place}: {error.strerror}")
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            return place
        refused.append(f"{place} belongs to another user, or others may write to it")
    raise PermissionError("; ".join(refused))


def _candidates() -> list[Path]:
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    of_user = os.environ.get("XDG_RUNTIME_DIR", "")
    own = f"statehold-{os.geteuid()}"
    system = Path("/run/statehold")
    return [
        *([Path(given)] if given else []),
        *([Path(of_user) / "statehold"] if of_user else []),
        *([system] if os.geteuid() == 0 else []),
        *(place / own for place in _shared_places()),
    ]


def _shared_places() -> list[Path]:
    """Return the temporary directory; after it /tmp, because a path in $TMPDIR may be too long for a socket."""
    return list(dict.fromkeys([Path(tempfile.gettempdir()), Path("/tmp")]))  # noqa: S108  with a directory of its own


def known_directories() -> list[Path]:
    """Return every directory where a service of this machine may have its socket, and that this user may read."""
    system = Path("/run/statehold")
    shared = [system, *_inside(system), *_inside(Path("/run/user"), "*/statehold")]
    temporary = [found for place in _shared_places() for found in _inside(place, "statehold-[0-9]*")]
    return list(dict.fromkeys([*_candidates(), *shared, *temporary]))


def _inside(directory: Path, pattern: str = "*") -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def listen(directory: Path, group: str) -> tuple[socket.socket, Path]:
    """Return a listening socket `<group>-<pid>.sock`, mode 0600.

    It gets its name after it listens, because a process that finds a dead socket removes it.

    :raises OSError: it cannot be made.
    """
    path = _free_path(directory, group)
    return listen_at(path), path


def listen_at(path: Path) -> socket.socket:
    """Return a listening socket of this path, mode 0600. :raises OSError: it cannot be made."""
    hidden = path.with_name(f".{os.getpid()}-{time.monotonic_ns():x}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen(64)
        hidden.rename(path)
    except OSError:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


def _free_path(directory: Path, group: str) -> Path:
    for number in range(1, 1000):
        tail = _tail(number)
        room = _room(directory, tail)
        if room < len(group) and room < _SHORTENED:
            raise OSError(f"{directory}: {_TOO_LONG}")
        # The name is for people; the answer to /status contains the group.
        name = (
            group
            if len(group) <= room
            else f"{group[: room - _SHORTENED]}.{hashlib.sha256(group.encode()).hexdigest()[:8]}"
        )
        path = directory / f"{name}{tail}"
        if not path.exists() or _answered(path) is None:
            return path
    raise OSError(f"{directory}: too many sockets of this process")


def _tail(number: int) -> str:
    return f"-{os.getpid()}{f'-{number}' if number > 1 else ''}{_SUFFIX}"


def _room(directory: Path, tail: str) -> int:
    """Return the bytes for a name before `tail` in this directory."""
    return _PATH_BYTES - len(os.fsencode(directory)) - len(tail) - 1


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process with a control socket: its status, or the reason for its silence."""

    path: Path
    status: dict[str, Any] | None
    trouble: str = ""


def find(timeout: float = 2.0) -> list[LocalProcess]:
    """Ask every service on this machine for its status, and remove sockets of dead processes. Blocks."""
    found = [_look(path, timeout) for directory in known_directories() for path in _listing(directory)]
    return [each for each in found if each is not None]


def _listing(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.is_socket())


def _look(path: Path, timeout: float) -> LocalProcess | None:
    try:
        answer = ask(path, "/status", timeout)
    except (ConnectionRefusedError, FileNotFoundError):
        _remove(path)
        return None
    except PermissionError:
        return LocalProcess(path, None, "belongs to another user: ask as that user, or as root")
    except TimeoutError:
        return LocalProcess(path, None, f"does not answer within {timeout:g} s: stopped (SIGSTOP), or starved of CPU")
    except (OSError, ValueError) as error:
        return LocalProcess(path, None, f"answers with {type(error).__name__}: {error}")
    return LocalProcess(path, answer)


def _remove(path: Path) -> None:
    """Remove the socket of a dead process, if this user owns it: another user's may be a trap."""
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.geteuid():
            path.unlink()


def _answered(path: Path) -> bool | None:
    """Return None if no process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        return True


class RequestRejected(ValueError):
    """The process rejects the request; the text is its reason."""


def ask(path: Path, target: str, timeout: float = 5.0, *, method: str = "GET") -> dict[str, Any]:
    """Send one HTTP request, such as `/status`; return the answer. Blocks for `timeout` seconds at most.

    :raises RequestRejected: the answer is an error.
    :raises OSError: no process listens, or it does not answer in time (TimeoutError).
    :raises ValueError: the answer is not HTTP with a JSON object.
    """
    status, _, body = exchange(path, target, timeout, method=method)
    try:
        answer = json.loads(body)
    except RecursionError as error:
        raise ValueError("its answer is nested too deeply") from error
    if not isinstance(answer, dict):
        raise ValueError(f"{answer!r} is not an answer")  # noqa: TRY004  a wrong answer, not a wrong argument
    if status != HTTPStatus.OK:
        raise RequestRejected(str(answer.get("error", status)))
    return answer


def exchange(
    path: Path, target: str, timeout: float, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send one HTTP request; return status, headers by lower-case name, and body. Blocks for `timeout` seconds at most.

    :raises OSError: no process listens, or it does not answer in time (TimeoutError).
    :raises ValueError: the answer is not HTTP.
    """
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        _connect(client, path, time.monotonic() + timeout)
        client.sendall(head.encode("latin-1"))
        return _read(client, method, timeout)


def _connect(client: socket.socket, path: Path, deadline: float) -> None:
    """Wait for room in the listener's queue: a Unix socket with a timeout does not do that by itself.

    :raises OSError: no process listens, or none has accepted by the deadline (TimeoutError).
    """
    while True:
        try:
            client.connect(str(path))
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise TimeoutError("too many others are waiting") from error
            time.sleep(_GLANCE)
        else:
            return


def _read(client: socket.socket, method: str, timeout: float) -> tuple[int, dict[str, str], bytes]:
    """Read an answer within limits of time and size, because another user may put a socket where root looks."""
    with contextlib.closing(HTTPResponse(_Connection(client, timeout), method=method)) as response:  # type: ignore[arg-type]
        try:
            response.begin()
            body = response.read(_ANSWER_BYTES + 1)
        except HTTPException as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
    if len(body) > _ANSWER_BYTES:
        raise ValueError(f"its answer has more than {_ANSWER_BYTES} bytes")
    if response.length:
        raise ValueError(f"its answer ends {response.length} bytes too early")
    return response.status, {name.lower(): value for name, value in response.headers.items()}, body


class _Connection:
    """The part of a socket that HTTPResponse uses."""

    def __init__(self, client: socket.socket, timeout: float) -> None:
        self._client, self._timeout = client, timeout

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(DeadlineReader(self._client, self._timeout))
