"""A request and its answer, apart from any server: the HTTP server and the ASGI application both use these."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from statehold.errors import class_and_text

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


class EventStream:
    """The body of an answer that has no end yet. Its server takes the pieces, and closes it once, whatever happens."""

    def __init__(self, first: bytes, pieces: Generator[bytes, None, None], ended: Callable[[], None]) -> None:
        """`first`: the piece before `pieces`; b'': none."""
        self._pieces, self._ended = pieces, ended
        self._first = [first] if first else []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> bytes | None:
        """Return the next piece, which may take seconds; None at the end."""
        with self._lock:
            return self._first.pop() if self._first else next(self._pieces, None)

    def close(self) -> None:
        """End it, after a `take` on another thread."""
        with self._lock:
            closed, self._closed = self._closed, True
            if not closed:
                try:
                    self._pieces.close()
                finally:
                    self._ended()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`headers` are sent in addition to the type, the length and `SAFE`."""

    status: int
    body: bytes
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    #: the body instead of `body`
    stream: EventStream | None = None

    def all_headers(self) -> list[tuple[str, str]]:
        length = {"Content-Length": str(len(self.body))} if self.stream is None else {}
        return list({"Content-Type": self.type, **length, **SAFE, **self.headers}.items())


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
        return as_json({"error": class_and_text(error)}, 500)


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
