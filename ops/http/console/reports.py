"""The console's slow pages: the doctor and the dead letters. Each runs on a thread, and only when its page asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from statehold.admin.dead_letters import DeadLetters, by_key
from statehold.errors import StateholdError, class_and_text
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.service import Service

#: seconds until a report may be made again, because each one asks the brokers
_REST: Final = 10.0
#: most keys in the list of dead letters
_KEYS: Final = 200


class Report:
    """A result that takes seconds: the last one, when it was made, and whether the next is being made."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._running, self._made, self._result, self._error = False, 0.0, None, ""

    def look(self, *, run: bool) -> dict[str, Any]:
        """Return what is known without waiting; `run` makes the report again if the last one is older than 10 s."""
        with self._lock:
            if run and not self._running and time.time() - self._made >= _REST:
                self._running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            return {"running": self._running, "made": self._made, "error": self._error, "result": self._result}

    def _run(self) -> None:
        result, error = None, ""
        try:
            result = self._make()
        except StateholdError as trouble:
            error = str(trouble)
        except Exception as bug:  # noqa: BLE001  a bug in a report must not keep the next one from running
            error = class_and_text(bug)
        with self._lock:
            self._running, self._made, self._result, self._error = False, time.time(), result, error


def doctor(service: Service) -> Any:
    """Run the checks of `statehold doctor --no-probe`. Blocks for seconds."""
    case = Case.of_handler(service.settings, service.names, service.handler)
    return msgspec.to_builtins(examine(case))


def dead_letters(service: Service) -> list[dict[str, Any]]:
    """Return the waiting dead letters by key: the first one, and how many wait behind it. Blocks for seconds.

    :raises StateholdError: the topic does not exist, or the cluster does not answer.
    """
    waiting = DeadLetters(service.settings, service.names).waiting()
    lines = by_key([dead_letter for dead_letters in waiting.values() for dead_letter in dead_letters]).values()
    return [
        {
            "dead_letter": line[0].name,
            "key": line[0].key.decode(errors="replace") if line[0].key is not None else None,
            "dead_letters": len(line),
            "time": line[0].timestamp / 1000,
            "error": line[0].error,
            "text": line[0].text,
        }
        for line in list(lines)[:_KEYS]
    ]
