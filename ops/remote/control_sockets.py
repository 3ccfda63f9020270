"""Control sockets as files: where they lie, how one is made, who still listens."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: a path of a Unix socket has 108 bytes on Linux, 104 on macOS, one of them for the end
_PATH_BYTES: Final = 100
_SUFFIX: Final = ".sock"
_ANSWER_BYTES: Final = 16_000_000


def own_directory() -> Path:
    """The directory for this process's sockets, made if it is missing.

    systemd's RUNTIME_DIRECTORY, else `statehold` in XDG_RUNTIME_DIR or, for root, in /run, else
    `statehold-<uid>` in the temporary directory, which belongs to everybody.

    :raises PermissionError: in none of them this user alone may write; the text says why.
    """
    refused = []
    for place in _candidates():
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
    temporary = Path(tempfile.gettempdir()) / f"statehold-{os.geteuid()}"
    system = Path("/run/statehold")
    return [
        *([Path(given)] if given else []),
        *([Path(of_user) / "statehold"] if of_user else []),
        *([system] if os.geteuid() == 0 else []),
        temporary,
    ]


def known_directories() -> list[Path]:
    """Everywhere that a service of this machine may have put its socket, as far as this user may look."""
    system = Path("/run/statehold")
    shared = [system, *_inside(system), *_inside(Path("/run/user"), "*/statehold")]
    temporary = _inside(Path(tempfile.gettempdir()), "statehold-[0-9]*")
    return list(dict.fromkeys([*_candidates(), *shared, *temporary]))


def _inside(directory: Path, pattern: str = "*") -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def listen(directory: Path, group: str) -> tuple[socket.socket, Path]:
    """A listening socket `<group>-<pid>.sock`, mode 0600.

    It gets its name when it listens already: whoever finds a name that refuses may take it for a dead one's.

    :raises OSError: it cannot be made.
    """
    path = _free_path(directory, group)
    hidden = path.with_name(f".{os.getpid()}-{time.monotonic_ns():x}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen(16)
        hidden.rename(path)
    except OSError:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener, path


def _free_path(directory: Path, group: str) -> Path:
    for number in range(1, 1000):
        tail = f"-{os.getpid()}{f'-{number}' if number > 1 else ''}{_SUFFIX}"
        room = _PATH_BYTES - len(os.fsencode(directory)) - len(tail) - 1
        # The name is for people; whoever asks learns the group from the answer.
        name = group if len(group) <= room else f"{group[: room - 9]}.{hashlib.sha256(group.encode()).hexdigest()[:8]}"
        path = directory / f"{name}{tail}"
        if not path.exists() or _answered(path) is None:
            return path
    raise OSError(f"{directory}: too many sockets of this process")


@dataclass(frozen=True, slots=True)
class Found:
    """A socket of a living process: what it said, or why it said nothing."""

    path: Path
    status: dict[str, Any] | None
    trouble: str = ""


def find(timeout: float = 2.0) -> list[Found]:
    """Ask every service on this machine for its status; removes what dead processes left behind. Blocks."""
    found = [_look(path, timeout) for directory in known_directories() for path in _listing(directory)]
    return [each for each in found if each is not None]


def _listing(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.is_socket())


def _look(path: Path, timeout: float) -> Found | None:
    try:
        answer = ask(path, {"command": "status"}, timeout)
    except (ConnectionRefusedError, FileNotFoundError):
        _remove(path)
        return None
    except PermissionError:
        return Found(path, None, "belongs to another user: ask as that user, or as root")
    except TimeoutError:
        return Found(path, None, f"does not answer within {timeout:g} s: stopped (SIGSTOP), or starved of CPU")
    except (OSError, ValueError) as error:
        return Found(path, None, f"answers with {type(error).__name__}: {error}")
    return Found(path, answer)


def _remove(path: Path) -> None:
    """Nobody listens, so its process is dead. Only this user's own: others may put a name there as a trap."""
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.geteuid():
            path.unlink()


def _answered(path: Path) -> bool | None:
    """None when nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        return True


def ask(path: Path, request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Send one request, return the answer. Blocks for `timeout` seconds at most.

    :raises OSError: nobody listens, or not in time (TimeoutError).
    :raises ValueError: what came back is no answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        client.connect(str(path))
        client.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(read_line(client, _ANSWER_BYTES, time.monotonic() + timeout))
    if isinstance(answer, dict):
        return answer
    raise ValueError(f"{answer!r} is no answer")


def read_line(connection: socket.socket, limit: int, deadline: float) -> bytes:
    """The bytes up to a line end or the peer's end. `deadline` is in monotonic seconds.

    :raises TimeoutError: the line did not end in time. :raises ValueError: it is longer than `limit`.
    """
    line = bytearray()
    while b"\n" not in line:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the line does not end")
        connection.settimeout(left)
        part = connection.recv(65_536)
        if not part:
            break
        line += part
        if len(line) > limit:
            raise ValueError(f"a line of more than {limit} bytes")
    return bytes(line.partition(b"\n")[0])
