"""Asks the processes of a supervisor over their control sockets, several in parallel. Any thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor.processes import MemberProcess

#: seconds for a process to answer: a state query may wait 3 s for the group
PATIENCE: Final = 8.0
SCRAPE: Final = 4.0
#: what a process needs of a request, and a client of its answer
_SENT: Final = ("authorization", "accept")
_RETURNED: Final = ("location", "retry-after", "www-authenticate", "allow", "cache-control")

Members = Mapping[int, MemberProcess]


def passed_on(member: MemberProcess, request: HttpRequest, timeout: float = PATIENCE) -> HttpAnswer:
    """Ask one process the same. :raises Rejected: it does not answer, or the answer would have no end."""
    if request.path.startswith("/watch/"):
        raise Rejected(404, "several processes share this server, which streams no changes. Next: use Client.watch")
    target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
    # On one line each: the control socket has commands that a client of the ops server may not send.
    headers: dict[str, str] = {
        name: " ".join(request.headers[name].split()) for name in _SENT if name in request.headers
    }
    method = "GET" if request.method == "HEAD" else request.method
    try:
        status, found, body = control_sockets.exchange(member.socket, target, timeout, method=method, headers=headers)
    except (OSError, ValueError) as error:
        raise Rejected(503, f"process {member.number} does not answer: {error}", {"Retry-After": "1"}) from error
    kept = {name.title(): found[name] for name in _RETURNED if name in found}
    return HttpAnswer(status, body, found.get("content-type", "application/json"), kept)


def gathered(members: Members, request: HttpRequest, timeout: float) -> dict[int, HttpAnswer]:
    """Ask several processes the same in parallel; those that do not answer are left out."""
    found: dict[int, HttpAnswer] = {}

    def ask(member: MemberProcess) -> None:
        with contextlib.suppress(Rejected):
            found[member.number] = passed_on(member, request, timeout)

    _in_parallel(ask, members, timeout)
    return dict(sorted(found.copy().items()))


def at_once(members: Members, target: str, timeout: float) -> dict[int, dict[str, Any]]:
    """Ask several processes for a JSON object in parallel; those that do not answer are left out."""
    found: dict[int, dict[str, Any]] = {}

    def ask(member: MemberProcess) -> None:
        with contextlib.suppress(OSError, ValueError):
            found[member.number] = control_sockets.ask(member.socket, target, timeout)

    _in_parallel(ask, members, timeout)
    return dict(sorted(found.copy().items()))


def _in_parallel(ask: Callable[[MemberProcess], None], members: Members, timeout: float) -> None:
    threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in members.values()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
