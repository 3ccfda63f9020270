"""Whoever operates the service of a run: reads its logs, mends what a trade waits for, has partitions try again."""

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

#: seconds until a cause is mended, and between two times that a partition is told to try again
_MENDING, _AGAIN = 1.0, 1.0
_ANSWER = 1.0
#: as the errors of `tests.chaos.failing` are told
_TOLD = re.compile(r"the handler raised (Parks|Stops): (t\d+)\.")


class Operator:
    """Used by the thread that runs the schedule.

    Only what the logs tell is mended: a trade that is there to park its partition, or to stop its service, and does
    not, leaves the run stuck.
    """

    def __init__(self, directory: Path, history: History, *, needed: bool) -> None:
        self._history = history
        #: where the services' control sockets lie; their paths must be short
        self.sockets = tempfile.mkdtemp(prefix="sh-ops-")
        #: a directory with a file for each trade whose cause is mended; '' where no trade fails
        self.mended = str(directory / "mended") if needed else ""
        if needed:
            os.makedirs(self.mended, exist_ok=True)
        #: trade -> its partition, and trades that have stopped a service
        self.parked: dict[str, int] = {}
        self.stopped: set[str] = set()
        #: trade -> when something is to be done about it
        self._due: dict[str, float] = {}

    def look(self, workers: Sequence[Worker], answered: AbstractSet[str]) -> None:
        """Once more; waits for answers of control sockets alone."""
        if not self.mended:
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
            self.parked[trade] = event["partition"]
        else:
            self.stopped.add(trade)
        self._due[trade] = now + _MENDING
        self._history.note("operator", trade=trade, waits=kind)

    def _help(self, trade: str, workers: Sequence[Worker]) -> None:
        """Mend its cause, then `statehold retry N`; what has stopped is started again by the supervisor."""
        Path(self.mended, trade).touch()
        if trade in self.parked:
            target = f"/retry?partition={self.parked[trade]}"
            for path in (path for worker in workers for path in Path(self.sockets).glob(f"*-{worker.pid}.sock")):
                with contextlib.suppress(OSError, ValueError):  # it is gone, frozen or busy; there is a next time
                    control_sockets.ask(path, target, _ANSWER, method="POST")


def trouble(event: LogEvent) -> tuple[str, str]:
    """Kind and id of the trade that an event is about, if it is there to park or to stop; '' and ''."""
    found = _TOLD.search(str(event.get("cause")))
    return (found[1].lower(), found[2]) if found else ("", "")
