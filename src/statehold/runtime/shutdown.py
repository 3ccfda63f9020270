"""Shuts a service down after a call that never returns, or after an outage longer than `kafka.outage`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from statehold.config.settings import Settings
from statehold.errors import StateholdError
from statehold.health.call_watchdog import CallWatchdog, stack_of
from statehold.health.connectivity import Contact
from statehold.telemetry.log_events import Log

#: Seconds after the stop's limit during which the manager thread may still end.
_GRACE: Final = 5.0
#: Time limit in seconds for a service that shuts itself down.
_WITHIN: Final = 10.0

Stop = Callable[[float], None]


class Shutdown:
    """Watches calls and connectivity of a service, and stops it when one of them fails.

    `stop` makes the manager end within a number of seconds. `ended` is set if the manager does not end.
    """

    def __init__(self, settings: Settings, log: Log, stop: Stop, ended: threading.Event) -> None:
        self._log, self._stop, self._ended = log, stop, ended
        self._within = min(_WITHIN, settings.service.stop_timeout)
        self._manager: threading.Thread | None = None
        #: The error that shut the service down.
        self.why: StateholdError | None = None
        limit = settings.kafka.outage
        self.watch = CallWatchdog(time.monotonic, log, self.leave)
        self.contact = Contact(self.watch, time.monotonic, log, None if limit == "wait" else limit, self.leave)

    def start(self, manager: threading.Thread) -> None:
        self._manager = manager
        self.watch.start()
        self.contact.start()

    def close(self) -> None:
        self.contact.close()
        self.watch.close()

    def leave(self, why: StateholdError) -> None:
        """Drain what can be drained and stop the service, whose `wait` then raises `why`. Any thread."""
        self.why = self.why or why
        self._stop(self._within)
        threading.Thread(target=self.await_end, args=(self._within,), name="shutdown", daemon=True).start()

    def await_end(self, within: float) -> None:
        """Wait until the manager thread has ended. Set `ended` if it does not, because it may be the stuck thread."""
        assert self._manager is not None
        self._manager.join(within + _GRACE)
        if self._manager.is_alive():
            self._log.error("stuck", doing="stop the service", stack=stack_of(self._manager.ident or 0))
            self._ended.set()

    def report(self, status: dict[str, Any], running: bool) -> dict[str, Any]:
        """Add stuck calls to the status, and how long Kafka has not answered: the service, and each partition."""
        status["stuck"] = self.watch.stuck() if running else []
        status["outage"] = self.contact.view() if running else None
        for partition in status["partitions"]:
            partition["unanswered"] = self.contact.of(partition["partition"])
        return status
