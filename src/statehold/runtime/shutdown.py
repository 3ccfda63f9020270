"""What makes a service leave by itself: a call that never comes back, or an outage that it may not wait out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from statehold.config.settings import Settings
from statehold.errors import StateholdError
from statehold.health.call_watchdog import Watch, stack_of
from statehold.health.connectivity import Contact
from statehold.telemetry.log_events import Log

#: seconds beyond a stop's own limit that its thread is waited for
_GRACE: Final = 5.0
#: how long a service that cannot go on may take to leave
_WITHIN: Final = 10.0

Stop = Callable[[float], None]


class Leaving:
    """One service's watch and contact, and its end when one of them says so.

    `stop` asks the manager to end within so many seconds; `ended` is set when nobody is to wait any longer.
    """

    def __init__(self, settings: Settings, log: Log, stop: Stop, ended: threading.Event) -> None:
        self._log, self._stop, self._ended = log, stop, ended
        self._within = min(_WITHIN, settings.service.stop_timeout)
        self._manager: threading.Thread | None = None
        #: what made the service leave
        self.why: StateholdError | None = None
        limit = settings.kafka.outage
        self.watch = Watch(time.monotonic, log, self.leave)
        self.contact = Contact(self.watch, time.monotonic, log, None if limit == "wait" else limit, self.leave)

    def start(self, manager: threading.Thread) -> None:
        self._manager = manager
        self.watch.start()
        self.contact.start()

    def close(self) -> None:
        self.contact.close()
        self.watch.close()

    def leave(self, why: StateholdError) -> None:
        """Any thread: the service cannot go on. What can still be drained is; then `wait` raises this."""
        self.why = self.why or why
        self._stop(self._within)
        threading.Thread(target=self.await_end, args=(self._within,), name="leaving", daemon=True).start()

    def await_end(self, within: float) -> None:
        """Until the manager's thread has ended, or cannot any more: it may itself be what is lost."""
        assert self._manager is not None
        self._manager.join(within + _GRACE)
        if self._manager.is_alive():
            self._log.error("stuck", doing="the end of the service", stack=stack_of(self._manager.ident or 0))
            self._ended.set()

    def tell(self, status: dict[str, Any], running: bool) -> dict[str, Any]:
        """A status, and in it how long Kafka has not answered, all in all and each partition; None while it does."""
        status["stuck"] = self.watch.stuck() if running else []
        status["outage"] = self.contact.view() if running else None
        for partition in status["partitions"]:
            partition["unanswered"] = self.contact.of(partition["partition"])
        return status
