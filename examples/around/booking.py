"""A web service that books each invoice once, by its Idempotency-Key: `python -m examples.around.booking 8080`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bookings(ThreadingHTTPServer):
    """Stores the first body of each key in `booked`; a duplicate gets the same answer as the first request."""

    daemon_threads = True

    def __init__(self, port: int, on_request: Callable[[str, bytes], None]) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.booked: dict[str, bytes] = {}
        #: Called with every request before the answer.
        self.on_request = on_request


class _Request(BaseHTTPRequestHandler):
    server: Bookings

    def do_POST(self) -> None:
        key, length = self.headers.get("Idempotency-Key"), int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the sender died on the way, so nothing is booked
            return
        if not key:
            self.send_error(400, "no Idempotency-Key")
            return
        self.server.on_request(key, body)
        same = self.server.booked.setdefault(key, body) == body
        self.send_response(201 if same else 422)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because `on_request` receives every request."""


if __name__ == "__main__":
    Bookings(int(sys.argv[1]), lambda key, body: print(key, body.decode(), flush=True)).serve_forever()
