"""The log lines of librdkafka clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from statehold.telemetry.log_events import Log


class ClientLog:
    """Passes a client's log lines to a function, on the thread that polls the client.

    The client calls only `log`. A `logging.Logger` would create a record for each of a transaction's 30 debug lines.
    """

    def __init__(self, take: Callable[[str, str], None]) -> None:
        self._take = take

    def log(self, level: int, form: str, *parts: str) -> None:
        """Take a line; `parts` are its kind, the client's name and the text."""
        if parts[0] != "WAKEUP":
            self._take(logging.getLevelName(level).lower(), form % parts)


def quiet_logger(name: str) -> ClientLog:
    """Return a log for a client whose calls raise their errors: it logs at debug level only."""
    log = Log(client=name)
    return ClientLog(lambda level, message: log.debug("kafka_log", level=level, message=message))


def quiet(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a client's configuration with a quiet logger."""
    return {**config, "logger": quiet_logger(name)}
