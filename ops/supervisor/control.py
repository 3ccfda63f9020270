"""The control socket of a supervisor: the routes, and the commands retry, drain, restart, scale and stacks."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import msgspec

from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered
from statehold.ops.process.control import Commands, obeyed, partition_of
from statehold.ops.process.stacks import stacks
from statehold.ops.supervisor.aggregate import ProcessView
from statehold.ops.supervisor.asking import PATIENCE, SCRAPE, at_once, gathered
from statehold.ops.supervisor.routes import FleetRoutes, Processes


class FleetControl:
    """Answers the commands itself and everything else as the ops server."""

    def __init__(self, processes: Processes, routes: FleetRoutes) -> None:
        self._processes, self._routes = processes, routes
        self._commands: Commands = {
            "/retry": ("POST", self._retry),
            "/drain": ("POST", self._drain),
            "/restart": ("POST", self._restart),
            "/scale": ("POST", self._scale),
            "/stacks": ("GET", self._stacks),
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer with an error whatever goes wrong."""
        if request.path not in self._commands:
            return self._routes.answer(request)
        return answered(partial(obeyed, self._commands), request)

    def _retry(self, request: HttpRequest) -> dict[str, Any]:
        chosen, members = partition_of(request), self._processes.members()
        if chosen is not None:
            here = {view.number for view in self._processes.views() if _holds(view, chosen)}
            members = {number: member for number, member in members.items() if number in here}
            if not members:
                raise Rejected(404, f"partition {chosen} is not here")
        retried: list[int] = []
        for answer in gathered(members, request, PATIENCE).values():
            body = msgspec.json.decode(answer.body)
            if answer.status != 200:
                raise Rejected(answer.status, str(body.get("error")))
            retried += body["retried"]
        return {"retried": sorted(retried), **self._routes.status()}

    def _drain(self, _: HttpRequest) -> dict[str, Any]:
        self._processes.change(lambda fleet, now: fleet.stop(now, drain=True))
        return self._routes.status()

    def _restart(self, _: HttpRequest) -> dict[str, Any]:
        self._processes.change(lambda fleet, now: fleet.restart(now))
        return self._routes.status()

    def _scale(self, request: HttpRequest) -> dict[str, Any]:
        text = request.query.get("processes", "")
        if not text.isdecimal() or len(text) > 6:
            raise Rejected(400, f"processes={text[:20]}: write a number")
        self._processes.change(lambda fleet, now: fleet.scale(int(text), now))
        return self._routes.status()

    def _stacks(self, _: HttpRequest) -> dict[str, Any]:
        found = {f"supervisor: {name}": frames for name, frames in stacks().items()}
        for number, answer in at_once(self._processes.members(), "/stacks", SCRAPE).items():
            found |= {f"process {number}: {name}": frames for name, frames in answer["stacks"].items()}
        return {"pid": os.getpid(), "stacks": found}


def _holds(view: ProcessView, partition: int) -> bool:
    return any(row["partition"] == partition for row in view.partitions)
