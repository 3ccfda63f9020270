"""A request and its answer, apart from any server: the HTTP server and the ASGI application both use these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

#: no sniffing, no framing, no requests to other sites; the console consists of plain files
SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
#: most fields of a query
_FIELDS: Final = 20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`path` is below the place where the application is mounted, percent-encoded; header names are lower case."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    #: the path of the mount, without a slash at the end
    root: str = ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`headers` are sent in addition to the type, the length and `SAFE`."""

    status: int
    body: bytes
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    def all_headers(self) -> list[tuple[str, str]]:
        own = {"Content-Type": self.type, "Content-Length": str(len(self.body)), **SAFE, **self.headers}
        return list(own.items())


class Rejected(Exception):
    """The request ends with this answer."""

    def __init__(self, status: int, why: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(why)
        self.answer = as_json({"error": why, **more}, status, headers)


def answered(step: Callable[[HttpRequest], HttpAnswer], request: HttpRequest) -> HttpAnswer:
    """Return the answer of a step; one with an error whatever goes wrong."""
    try:
        return step(request)
    except Rejected as rejected:
        return rejected.answer
    except Exception as error:  # noqa: BLE001  the client gets it; the server must answer the next
        return as_json({"error": f"{type(error).__name__}: {error}"}, 500)


def fields_of(query: str) -> dict[str, str]:
    """Parse the fields of a query.

    :raises Rejected: there are too many fields.
    """
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError as error:
        raise Rejected(400, f"more than {_FIELDS} fields behind the ?") from error


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HttpAnswer:
    """Encode a value as JSON; types that msgspec does not know become text."""
    return HttpAnswer(status, msgspec.json.encode(value, enc_hook=str) + b"\n", headers=headers or {})
