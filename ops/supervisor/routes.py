"""The routes of all processes together: the supervisor's ops server, and its control socket with commands.

Health comes from the newest statuses, so it never waits. `/status`, `/metrics` and state queries ask the processes.
`/process/2/...` passes a request on to process 2, everything else to the first process that answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
from prometheus_client.exposition import choose_encoder

import statehold
from statehold.config.settings import Settings
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered, as_json
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.health import Verdict
from statehold.ops.supervisor import aggregate, exposition
from statehold.ops.supervisor.aggregate import ProcessView
from statehold.ops.supervisor.asking import PATIENCE, SCRAPE, at_once, gathered, passed_on
from statehold.ops.supervisor.fleet import Fleet
from statehold.ops.supervisor.processes import MemberProcess

#: commands of control sockets; other machines may reach these routes
_COMMANDS: Final = frozenset({"/retry", "/drain", "/stacks", "/share", "/restart", "/scale"})
#: seconds for a status, less than the patience of `statehold status`; a slower process shows its newest one
_STATUS: Final = 1.2
#: seconds that the supervisor's loop may take for a turn
_LOOP: Final = 60.0
_PREFIX: Final = "/process/"
#: statuses of an answer about a key, best first; any other one is a wrong request, and alike everywhere
_BEST_FIRST: Final = (200, 307, 404, 503, 421)


class Processes(Protocol):
    """What the routes read of the supervisor. Any thread."""

    url: str
    settings: Settings
    target: str
    instance: str

    def views(self) -> list[ProcessView]: ...

    def members(self) -> Mapping[int, MemberProcess]: ...

    def turned(self) -> float:
        """Return the seconds since the supervisor's loop has turned."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what `/status` says of the supervisor itself: `wanted`, `stopping`, `roll`."""
        ...

    def change(self, step: Callable[[Fleet, float], None]) -> None:
        """Run a step of the fleet on the supervisor's own thread; return after it. Raises the step's error."""
        ...


class FleetRoutes:
    """Answers for all processes, if the guard lets the request pass."""

    def __init__(self, processes: Processes, guard: RequestGuard) -> None:
        self._processes, self._guard = processes, guard
        #: the last known answer of a process, for what never changes: names and topics
        self._known: Mapping[str, Any] = {}
        self._routes: dict[str, Callable[[HttpRequest], HttpAnswer]] = {
            "/live": lambda _: self._health(aggregate.live(processes.views(), processes.turned(), _LOOP), "live"),
            "/ready": lambda _: self._health(aggregate.ready(processes.views()), "ready"),
            "/startup": lambda _: self._health(aggregate.started(processes.views()), "started"),
            "/metrics": self._metrics,
            "/status": lambda _: as_json(self.status()),
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        return answered(self._route, request)

    def status(self) -> dict[str, Any]:
        """Return the status of the service as of one process, and `processes` with a row for each."""
        answers = at_once(self._processes.members(), "/status", _STATUS)
        views = [
            replace(view, status=answers[view.number], silent=0.0) if view.number in answers else view
            for view in self._processes.views()
        ]
        self._known = next(iter(answers.values()), self._known)
        known, settings = self._known, self._processes.settings
        return {
            "name": known.get("name", self._processes.target),
            "pid": os.getpid(),
            "version": statehold.__version__,
            "brokers": settings.kafka.bootstrap_servers,
            "service": known.get("service", self._processes.target),
            "input": known.get("input", ""),
            "inputs": known.get("inputs", []),
            "instance": self._processes.instance,
            "url": self._processes.url,
            **aggregate.merged(views),
            **self._processes.state(),
            "processes": [view.shown() for view in views],
        }

    def _route(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        if path.startswith(_PREFIX):
            number, slash, rest = path.removeprefix(_PREFIX).partition("/")
            member = self._members().get(int(number)) if number.isdecimal() and len(number) < 6 else None
            inner = replace(request, path=f"/{rest}")
            self._check(inner)
            if member is None:
                raise Rejected(404, f"there is no process {number[:20]}; there are {self._numbers()}")
            if not slash:
                return HttpAnswer(308, b"", headers={"Location": f"{request.root}{path}/"})
            return passed_on(member, inner)
        self._check(request)
        if path in self._routes:
            return self._routes[path](request)
        if path == "/state" or path.startswith("/state/"):
            return self._state(request)
        return self._first(request)

    def _check(self, request: HttpRequest) -> None:
        self._guard.check(request)
        if request.path in _COMMANDS:
            raise Rejected(404, f"{request.path} is a command of the control socket")

    def _health(self, verdict: Verdict, name: str) -> HttpAnswer:
        status = 200 if verdict.ok else 503
        return as_json({name: verdict.ok, "why": verdict.why, "instance": self._processes.instance}, status)

    def _metrics(self, request: HttpRequest) -> HttpAnswer:
        accept = request.headers.get("accept", "")
        encode, kind = choose_encoder(accept)
        asked = HttpRequest("GET", "/metrics", headers={"accept": accept})
        # A process of another release may know another format, which cannot be merged.
        texts = {
            number: answer.body.decode()
            for number, answer in gathered(self._members(), asked, SCRAPE).items()
            if (answer.status, answer.type.partition(";")[0]) == (200, kind.partition(";")[0])
        }
        service = str(self._known.get("service") or self._service())
        own = encode(exposition.registry_of(service, self._processes.views(), texts)).decode()
        return HttpAnswer(200, exposition.merged(texts, own).encode(), kind)

    def _service(self) -> str:
        statuses = (view.status for view in self._processes.views())
        return next((str(status["service"]) for status in statuses if status is not None), self._processes.target)

    def _first(self, request: HttpRequest) -> HttpAnswer:
        for member in self._members().values():
            try:
                return passed_on(member, request)
            except Rejected:
                continue
        raise Rejected(503, f"no process answers; {aggregate.counted(self._processes.views())}", {"Retry-After": "1"})

    def _state(self, request: HttpRequest) -> HttpAnswer:
        parts = request.path.split("/")[2:]
        answers = list(gathered(self._members(), request, PATIENCE).values())
        if not answers:
            return self._first(request)
        if (len(parts) > 1 and parts[1]) or request.query.get("after"):  # the process that has the partition
            return min(answers, key=_preference)
        if failed := next((each for each in answers if each.status != 200), None):
            return failed
        found = [msgspec.json.decode(each.body) for each in answers]
        if not parts or not parts[0]:
            return as_json(aggregate.merged_tables(found))
        tables = msgspec.json.decode(self._first(replace(request, path="/state", query={})).body)["tables"]
        limit = int(request.query.get("limit", "100"))  # each process has checked it
        return as_json(aggregate.merged_rows(found, tables[parts[0]]["key"], limit))

    def _members(self) -> Mapping[int, MemberProcess]:
        return self._processes.members()

    def _numbers(self) -> str:
        return ", ".join(map(str, self._members())) or "no processes that run"


def _preference(answer: HttpAnswer) -> int:
    return _BEST_FIRST.index(answer.status) if answer.status in _BEST_FIRST else -1
