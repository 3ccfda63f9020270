"""The operator of a run's service: reads its logs, fixes the cause that a trade waits for, retries partitions."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from tests.chaos.failing import PARKS, STOPS
from tests.chaos.history import History
from tests.chaos.workers import LogEvent, Worker

from statehold.ops.remote import control_sockets

#: seconds until a cause is fixed, and between two retries of a partition
_FIXING, _AGAIN = 1.0, 1.0
_ANSWER = 1.0
#: as the errors of `tests.chaos.failing` appear in the log
_LOGGED = re.compile(r"the handler raised (Parks|Stops): (t\d+)\.")


class Operator:
    """Used by the thread that runs the schedule.

    Only the causes that the logs name are fixed: a trade that is there to pause its partition, or to stop its service,
    and does not, leaves the run stuck.
    """

    def __init__(self, directory: Path, history: History, *, needed: bool) -> None:
        self._history = history
        #: where the services' control sockets are; their paths must be short
        self.sockets = tempfile.mkdtemp(prefix="sh-ops-")
        #: a directory with a file for each trade whose cause is fixed; '' where no trade fails
        self.fixed = str(directory / "fixed") if needed else ""
        if needed:
            os.makedirs(self.fixed, exist_ok=True)
        #: trade -> its partition, and trades that have stopped a service
        self.paused: dict[str, int] = {}
        self.stopped: set[str] = set()
        #: trade -> when something is to be done about it
        self._due: dict[str, float] = {}

    def look(self, workers: Sequence[Worker], answered: AbstractSet[str]) -> None:
        """Once more; waits for answers of control sockets alone."""
        if not self.fixed:
            return
        now = self._history.now()
        for worker in workers:
            for event in worker.news("failed", "stopped"):
                self._note(event, now)
        for trade, due in list(self._due.items()):
            if trade in answered:
                del self._due[trade]
            elif now >= due:
                self._due[trade] = now + _AGAIN
                self._help(trade, workers)

    def close(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _note(self, event: LogEvent, now: float) -> None:
        kind, trade = trouble(event)
        if trade in self._due or (kind, event["event"]) not in ((PARKS, "failed"), (STOPS, "stopped")):
            return
        if kind == PARKS:
            self.paused[trade] = event["partition"]
        else:
            self.stopped.add(trade)
        self._due[trade] = now + _FIXING
        self._history.note("operator", trade=trade, waits=kind)

    def _help(self, trade: str, workers: Sequence[Worker]) -> None:
        """Fix its cause, then `statehold retry N`; the supervisor starts again what has stopped."""
        Path(self.fixed, trade).touch()
        if trade in self.paused:
            target = f"/retry?partition={self.paused[trade]}"
            for path in (path for worker in workers for path in Path(self.sockets).glob(f"*-{worker.pid}.sock")):
                with contextlib.suppress(OSError, ValueError):  # it is gone, frozen or busy; there is a next time
                    control_sockets.ask(path, target, _ANSWER, method="POST")


def trouble(event: LogEvent) -> tuple[str, str]:
    """Kind and id of the trade that an event is about, if it is there to park or to stop; '' and ''."""
    found = _LOGGED.search(str(event.get("cause")))
    return (found[1].lower(), found[2]) if found else ("", "")
