"""An ops server with a few routes, for a command that runs for long and is no service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from statehold.config.sections.ops import OpsSettings
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, as_json
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.server import listen, url_of

Route = Callable[[HttpRequest], HttpAnswer]


class SmallRoutes:
    """Answers these paths, if the guard lets the request pass. Any thread."""

    def __init__(self, guard: RequestGuard, routes: Mapping[str, Route]) -> None:
        self._guard, self._routes = guard, routes

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        try:
            self._guard.check(request)
            return self._routes.get(request.path, self._unknown)(request)
        except Rejected as rejected:
            return rejected.answer
        except Exception as error:  # noqa: BLE001  the client gets it; the server must answer the next
            return as_json({"error": f"{type(error).__name__}: {error}"}, 500)

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
    thread = threading.Thread(target=server.serve_forever, name=f"ops-{name}", daemon=True)
    thread.start()
    try:
        yield url_of(server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10.0)
