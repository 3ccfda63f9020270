"""The routes of every ops server. Any thread may call them; only `/state` may wait, for the group's answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

import statehold
from statehold.ops.http import health
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered, as_json
from statehold.ops.http.console import facts, reports
from statehold.ops.http.console.history import SPANS, History
from statehold.ops.http.console.instances import OtherInstances
from statehold.ops.http.console.reports import Report
from statehold.ops.http.guard import PAGE, RequestGuard
from statehold.ops.http.state import Queries
from statehold.ops.http.watch import WatchRoutes
from statehold.service import Service
from statehold.worker.replicas.queries import Busy

_FILES: Final = Path(__file__).parent / "console" / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Routes:
    """Answers for one service, if the guard lets the request pass."""

    def __init__(self, service: Service, guard: RequestGuard) -> None:
        self._service = service
        self._guard = guard
        self._queries, self._watches = Queries(service), WatchRoutes(service)
        self.history = History()
        self._others = OtherInstances(service)
        self._doctor = Report(f"doctor-{service.name}", partial(reports.doctor, service))
        self._dead_letters = Report(f"dead-letters-{service.name}", partial(reports.dead_letters, service))
        self._lock = threading.Lock()
        self._routes: dict[str, Callable[[HttpRequest], HttpAnswer]] = {
            "/live": lambda _: self._health(health.live(self._service.status()), "live"),
            "/ready": lambda _: self._health(health.ready(self._service.status()), "ready"),
            "/startup": lambda _: self._health(health.started(self._service.status()), "started"),
            "/metrics": self._metrics,
            "/status": lambda _: as_json(self.status()),
            "/console/data": self._data,
            "/console/configuration": lambda _: as_json(facts.configuration(service)),
            "/console/runbook": self._runbook,
            "/console/timers": self._timers,
            "/console/calls": self._calls,
            "/console/doctor": lambda request: as_json(self._doctor.look(run="run" in request.query)),
            "/console/dead-letters": lambda request: as_json(self._dead_letters.look(run="run" in request.query)),
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        return answered(self._checked, request)

    def _checked(self, request: HttpRequest) -> HttpAnswer:
        self._guard.check(request)
        return self._route(request)

    def close(self) -> None:
        """End the streams, which would otherwise live until their next event."""
        self._watches.close()

    def sample(self) -> None:
        """Take a sample for the console; call it every second or two."""
        with self._lock:
            self.history.note(self._service.status())

    def status(self) -> dict[str, Any]:
        """Return the object of `statehold status --json`."""
        return {
            "name": self._service.name,
            "pid": os.getpid(),
            "version": statehold.__version__,
            "brokers": self._service.settings.kafka.bootstrap_servers,
            **self._service.status(),
        }

    def _route(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        if path == "":  # mounted: the page's relative links need the slash
            return HttpAnswer(308, b"", headers={"Location": f"{request.root}/"})
        if path in self._routes:
            return self._routes[path](request)
        if path in PAGE:
            name = path[1:] or "index.html"
            kind = _TYPES[Path(name).suffix]
            return HttpAnswer(200, (_FILES / name).read_bytes(), kind, {"Cache-Control": "no-cache"})
        if is_state(path):
            return self._state(request)
        if is_watch(path):
            self._check_state_allowed(request)
            return self._watches.answer(request)
        known = ", ".join(["/", *self._routes, "/state/<table>", "/state/<table>/<key>", "/watch/<table>"])
        raise Rejected(404, f"there is no {path}; there are {known}")

    def _health(self, verdict: health.Verdict, name: str) -> HttpAnswer:
        status = 200 if verdict.ok else 503
        return as_json({name: verdict.ok, "why": verdict.why, "instance": self._service.status()["instance"]}, status)

    def _metrics(self, request: HttpRequest) -> HttpAnswer:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return HttpAnswer(200, encode(self._service.metrics.registry), kind)

    def _state(self, request: HttpRequest) -> HttpAnswer:
        self._check_state_allowed(request)
        return self._queries.answer(request)

    def _timers(self, request: HttpRequest) -> HttpAnswer:
        self._check_state_allowed(request)
        return self._read(facts.timers)

    def _calls(self, _: HttpRequest) -> HttpAnswer:
        return self._read(facts.calls)

    def _read(self, page: Callable[[Service], dict[str, Any]]) -> HttpAnswer:
        try:
            return as_json(page(self._service))
        except Busy:
            raise Rejected(503, "commits come too fast to read between them; ask again") from None

    def _check_state_allowed(self, request: HttpRequest) -> None:
        if self._service.settings.ops.state != "on":
            raise Rejected(404, "state queries are off. Next: set ops.state = 'on' and ops.token")
        self._guard.check_token(request, needed=True)

    def _runbook(self, request: HttpRequest) -> HttpAnswer:
        error = request.query.get("error", "")
        if not (parts := facts.explanation(error)):
            raise Rejected(404, f"no explanation of {error[:100]!r}")
        return as_json(parts)

    def _data(self, request: HttpRequest) -> HttpAnswer:
        """Return the data of the console; `event` and `tick` are the newest numbers that the client has."""
        overview = self._service.overview
        members = overview.members.look() if overview is not None else ()
        span = number(request, "span", default=300)
        if span not in SPANS:
            raise Rejected(400, f"span={span}: write one of {', '.join(map(str, SPANS))}")
        with self._lock:
            history = self.history.after(number(request, "tick"), span)
        return as_json(
            {
                "status": self.status(),
                "live": health.live(self._service.status()),
                "ready": health.ready(self._service.status()),
                "events": self._service.events.after(number(request, "event")),
                "history": history,
                "members": [
                    {
                        "id": member.id,
                        "client": member.client_id,
                        "host": member.host,
                        "partitions": member.partitions,
                        "url": member.url,
                    }
                    for member in members
                ],
                "others": self._others.look(),
                "partitions": overview.partitions if overview is not None else 0,
                "queries": self._service.settings.ops.state == "on",
            }
        )


def is_state(path: str) -> bool:
    """Return whether a path is of state queries, which may wait."""
    return path == "/state" or path.startswith("/state/")


def is_watch(path: str) -> bool:
    """Return whether a path is of a watch, which stays open."""
    return path.startswith("/watch/")


def number(request: HttpRequest, name: str, default: int = 0) -> int:
    """:raises Rejected: it is not a whole number of at most 18 digits."""
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 18:
        raise Rejected(400, f"{name}={text}: write a whole number of at most 18 digits")
    return int(text)
