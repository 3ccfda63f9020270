"""Reports to the supervisor of `statehold run` (systemd, Type=notify): started, progress, alive, stopping.

It uses the answers of `/live` and `/ready`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from statehold.ops.http import health
from statehold.ops.process.sd_notify import Notify, watchdog_seconds
from statehold.telemetry.log_events import Log

#: seconds between two samples
_LOOK_EVERY: Final = 1.0
#: share of the watchdog's time, so that one late sample does not kill the process
_OF_WATCHDOG: Final = 0.25
#: microseconds by which each sample extends a start in progress
_EXTENSION: Final = 30_000_000
_NAMED: Final = 3


def settled(status: dict[str, Any]) -> bool:
    """Return whether the start is over: all assigned partitions are live, or this is an idle member.

    A failed partition does not delay the start, because the others work and a restart would meet the same record.
    """
    partitions = status["partitions"]
    if not partitions:
        return bool(status["idle"])
    return status["running"] and all(each["phase"] in ("live", "failed") for each in partitions)


def sentence(status: dict[str, Any]) -> str:
    """Return one line for `systemctl status`."""
    partitions = status["partitions"]
    if status["stopping"]:
        return f"stopping, {_counted(partitions)}"
    if not status["running"]:
        return "starting: it looks at the brokers and the topics"
    if not (alive := health.live(status)).ok:
        return f"stuck: {'; '.join(alive.why)}"
    if (ready := health.ready(status)).ok:
        return _counted(partitions) if partitions else status["waiting"] or "joining the group"
    more = f"; and {len(ready.why) - _NAMED} more" if len(ready.why) > _NAMED else ""
    return f"{_counted(partitions)}: {'; '.join(ready.why[:_NAMED])}{more}"


def _counted(partitions: list[dict[str, Any]]) -> str:
    """Return text such as `3 live, 1 restoring`."""
    phases = Counter(str(each["phase"]) for each in partitions)
    return ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items())) or "no partition"


class SupervisorMessages:
    """Decides which messages a status needs, after those already sent. Pure except for its memory."""

    def __init__(self) -> None:
        self.ready = self.stopping = False
        self._sentence = ""

    def next(self, status: dict[str, Any], *, watched: bool) -> dict[str, object]:
        """Return the messages to send now; `watched`: the supervisor expects a sign of life."""
        values: dict[str, object] = {}
        alive = health.live(status).ok
        if status["stopping"] and not self.stopping:
            self.stopping, values["STOPPING"] = True, 1
        if not self.ready and not self.stopping:
            if status["running"] and settled(status):
                self.ready, values["READY"] = True, 1
            elif alive or not status["begun"]:
                values["EXTEND_TIMEOUT_USEC"] = _EXTENSION
        if watched and alive:
            values["WATCHDOG"] = 1
        if (sentence_now := sentence(status)) != self._sentence:
            self._sentence, values["STATUS"] = sentence_now, sentence_now
        return values


class Supervision:
    """Reports on its own thread: `with Supervision(service.status):` around the run. Idle without a supervisor."""

    def __init__(self, status: Callable[[], dict[str, Any]], environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        self._status, self._messages = status, SupervisorMessages()
        self._notify = Notify.of(given)
        self._watchdog = watchdog_seconds(given)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervision", daemon=True)

    def __enter__(self) -> Self:
        if self._notify is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._notify is None:
            return
        self._ending.set()
        self._thread.join()
        why = f": {kind.__name__}: {error}" if kind is not None and issubclass(kind, Exception) else ""
        self._notify.send(**({} if self._messages.stopping else {"STOPPING": 1}), STATUS=f"ended{why}")
        self._notify.close()

    def _run(self) -> None:
        assert self._notify is not None
        rest = min(_LOOK_EVERY, self._watchdog * _OF_WATCHDOG) if self._watchdog else _LOOK_EVERY
        while True:
            try:
                self._notify.send(**self._messages.next(self._status(), watched=self._watchdog is not None))
            except Exception as error:  # noqa: BLE001  no sign of life then; if it stays so, the watchdog acts
                Log().error("supervision_failed", cause=f"{type(error).__name__}: {error}", exc_info=True)
            if self._ending.wait(rest):
                return
