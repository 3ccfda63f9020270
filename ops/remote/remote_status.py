"""Asks the instances of a group on all machines for their status, by the ops servers that they advertise.

A member joins as `<service>@<advertised url>` (docs/reference/ops.md).
`/status` needs `ops.token` on an exposed server.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

import msgspec

from statehold.config.settings import Settings
from statehold.ports import GroupMember

_SECONDS: Final = 2.0
_AT_ONCE: Final = 16
_LARGEST: Final = 16_000_000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that the token goes to the advertised server only."""

    def redirect_request(self, *given: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


class Reached(msgspec.Struct, frozen=True):
    """One member: its status, or in `trouble` the reason why it is missing."""

    client: str
    host: str
    status: dict[str, Any] | None = None
    trouble: str = ""


def reach(settings: Settings, group: str, members: Sequence[GroupMember]) -> list[Reached]:
    """Ask all members in parallel; blocks for about two seconds at most."""
    if not members:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(members)), thread_name_prefix="reach") as pool:
        return list(pool.map(lambda member: _ask(settings, group, member), members))


def _read(answer: HTTPResponse) -> bytes:
    """:raises TimeoutError: the server sends too slowly."""
    until, found = time.monotonic() + 2 * _SECONDS, b""
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > _LARGEST or time.monotonic() > until:
            raise TimeoutError("its answer does not end")
    return found


def _ask(settings: Settings, group: str, member: GroupMember) -> Reached:
    url = member.url
    if not url:
        return Reached(member.client_id, member.host, trouble="it has no ops server (ops.listen, kafka.client_id)")
    request = urllib.request.Request(f"{url}/status")  # noqa: S310  its scheme was looked at
    if token := settings.ops.token.reveal():
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _OPENER.open(request, timeout=_SECONDS) as answer:
            status = msgspec.json.decode(_read(answer))  # rejects text that is not UTF-8, which cannot be shown
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        return Reached(member.client_id, member.host, trouble=f"{url}: {error}")
    if not isinstance(status, dict) or (status.get("service"), status.get("url")) != (group, url):
        # A loopback address of another machine means another process here, or no process.
        return Reached(member.client_id, member.host, trouble=f"{url} is not that instance as seen from here")
    return Reached(member.client_id, member.host, status)
