"""An ops server with a few routes, for a command that runs for long and is no service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from statehold.config.sections.ops import OpsSettings
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.server import listen, url_of

Route = Callable[[HttpRequest], HttpAnswer]


class SmallRoutes:
    """Answers these paths, if the guard lets the request pass. Any thread."""

    def __init__(self, guard: RequestGuard, routes: Mapping[str, Route]) -> None:
        self._guard, self._routes = guard, routes

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        return answered(self._route, request)

    def _route(self, request: HttpRequest) -> HttpAnswer:
        self._guard.check(request)
        return self._routes.get(request.path, self._unknown)(request)

    def _unknown(self, request: HttpRequest) -> HttpAnswer:
        raise Rejected(404, f"there is no {request.path}; there are {', '.join(self._routes)}")


@contextmanager
def small_server(settings: OpsSettings, routes: Mapping[str, Route], name: str) -> Iterator[str]:
    """Listen where `ops.listen` says; yield the URL, or '' if the setting is off.

    :raises StartError: the address cannot be listened on.
    """
    if settings.listen == "off":
        yield ""
        return
    guard = RequestGuard(settings, exposed=not settings.local_only)
    server = listen(settings.listen, SmallRoutes(guard, routes).answer)
    server.begin(f"ops-{name}")
    try:
        yield url_of(server)
    finally:
        server.end()
