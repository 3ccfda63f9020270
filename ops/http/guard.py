"""Decides which requests are answered: by method, Host header and bearer token."""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import urlsplit

from statehold.config.sections.ops import OpsSettings
from statehold.ops.http.answers import HttpRequest, Rejected

#: routes for monitoring, and the files of the console, which hold no data
OPEN: Final = frozenset({"/live", "/ready", "/startup", "/metrics"})
PAGE: Final = frozenset(
    {
        "/",
        *("/console.css", "/icon.svg"),
        *("/console.js", "/charts.js", "/draw.js", "/overview.js", "/pages.js", "/partition.js", "/timeline.js"),
    }
)
#: the same of a shadow's page
SHADOW_PAGE: Final = frozenset({"/shadow.js"})
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="statehold"'}
_HERE: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class RequestGuard:
    """Rejects by raising. `exposed`: other machines can reach the server."""

    def __init__(self, settings: OpsSettings, *, exposed: bool) -> None:
        self._secret, self._exposed = settings.token, exposed
        advertised = urlsplit(settings.advertised).hostname
        self._hosts = _HERE | ({advertised} if advertised else set())

    def check(self, request: HttpRequest) -> None:
        """:raises Rejected: wrong method, a foreign Host, or no token where one is needed."""
        self.check_method(request)
        self._check_host(request)
        if request.path and request.path not in OPEN | PAGE | SHADOW_PAGE:
            self.check_token(request, needed=self._exposed)

    def check_method(self, request: HttpRequest) -> None:
        """:raises Rejected: it is neither GET nor HEAD."""
        if request.method not in ("GET", "HEAD"):
            raise Rejected(405, f"{request.method}: only GET and HEAD", {"Allow": "GET, HEAD"})

    def check_token(self, request: HttpRequest, *, needed: bool) -> None:
        """:raises Rejected: the token is wrong or missing; or `needed`, and none is set."""
        token = self._secret.reveal().encode()  # read again, because the file may have changed since the start
        if not token:
            if needed:
                raise Rejected(403, "this is not shown without a token. Next: set ops.token")
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Rejected(401, "send the token: Authorization: Bearer ...", _CHALLENGE)
        # In constant time, so that it does not leak how many characters are right.
        if not hmac.compare_digest(given.strip().encode(), token):
            raise Rejected(401, "the token is wrong", _CHALLENGE)

    def _check_host(self, request: HttpRequest) -> None:
        """Reject foreign Host headers, because a web page could reach loopback by DNS rebinding."""
        if self._exposed or self._secret:
            return
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError as error:
            raise Rejected(400, "this is no host") from error
        if host is not None and host not in self._hosts:
            raise Rejected(421, f"this server is not {host}")


class SocketGuard(RequestGuard):
    """Guards a Unix socket: its file mode decides who may connect, so that it needs neither token nor Host.

    `/state` needs the token here as well, as on every other listener.
    """

    def __init__(self, settings: OpsSettings) -> None:
        super().__init__(settings, exposed=False)

    def check(self, request: HttpRequest) -> None:
        """:raises Rejected: wrong method."""
        self.check_method(request)
