"""A scorer that is slow, fails, and asks for pauses: `python -m examples.scoring.scorer 8090`.

It remembers the score of each Idempotency-Key, because the risk that it finds changes from request to request.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from examples.scoring.app import Payment, Score


class Scorer(ThreadingHTTPServer):
    """Scores payments. Any thread may read `scores` and `asked`."""

    daemon_threads = True
    #: connections that wait to be accepted
    request_queue_size = 256

    def __init__(self, port: int, latency: float = 0.05, failing: float = 0.2) -> None:
        """`latency`: mean seconds of a request. `failing`: the part of the requests that fails."""
        super().__init__(("127.0.0.1", port), _Request)
        self.latency, self.failing = latency, failing
        #: score by Idempotency-Key, and how often each was asked
        self.scores: dict[str, int] = {}
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Report nothing: a client that was killed closes its connections."""

    def score(self, key: str) -> int:
        with self._lock:
            self.asked[key] += 1
            return self.scores.setdefault(key, random.randrange(100))


class _Request(BaseHTTPRequestHandler):
    server: Scorer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        key = self.headers.get("Idempotency-Key", "")
        payment = msgspec.json.decode(self.rfile.read(int(self.headers.get("Content-Length", 0))), type=Payment)
        time.sleep(random.expovariate(1 / self.server.latency))
        chance = random.random()
        if payment.card.startswith("unknown"):
            self._answer(404)
        elif chance < self.server.failing / 2:
            self._answer(503, retry_after="0.1")
        elif chance < self.server.failing * 3 / 4:
            self._answer(500)
        else:
            risk = self.server.score(key)
            if chance < self.server.failing:  # the score is made, and its answer is lost
                self.close_connection = True
            else:
                self._answer(200, msgspec.json.encode(Score(risk)))

    def _answer(self, status: int, body: bytes = b"", retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there are many requests."""


if __name__ == "__main__":
    Scorer(int(sys.argv[1])).serve_forever()
