"""A token endpoint (client credentials, over TLS), and tokens without a signature, which a test broker accepts."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from tests.support.pki import Identity


def unsigned(subject: str, seconds: float = 3600.0) -> str:
    """Return an unsigned JWT of `subject`."""
    now = time.time()
    claims = {"sub": subject, "iat": int(now) - 1, "exp": int(now + seconds), "scope": "kafka"}
    return ".".join((_part({"alg": "none", "typ": "JWT"}), _part(claims), ""))


class TokenEndpoint:
    """Issues `subject` a token for the right client id and secret; counts the requests."""

    def __init__(self, identity: Identity, client: str, secret: str, subject: str, seconds: float = 3600.0) -> None:
        self.client, self.secret, self.subject, self.seconds = client, secret, subject, seconds
        self.given = self.refused = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.both)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        wanted = "Basic " + base64.b64encode(f"{self.client}:{self.secret}".encode()).decode()
        if authorization != wanted or form.get("grant_type") != ["client_credentials"]:
            self.refused += 1
            return 401, {"error": "invalid_client"}
        self.given += 1
        token = unsigned(self.subject, self.seconds)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.seconds)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode())
                status, body = endpoint.answer(self.headers.get("Authorization", ""), form)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing, because tests read the counters."""

        return Handler


def _part(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
