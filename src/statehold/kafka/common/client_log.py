"""The log lines of librdkafka clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from statehold.telemetry.log_events import Log


class LogHandler(logging.Handler):
    """Passes librdkafka's log lines to a function, on the thread that polls the client."""

    def __init__(self, take: Callable[[str, str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith("WAKEUP"):
            self._take(record.levelname.lower(), message)


def quiet_logger(name: str) -> logging.Logger:
    """Return a logger for a client whose calls raise their errors: it logs at debug level only."""
    log = Log(client=name)
    return client_logger(name, lambda level, message: log.debug("kafka_log", level=level, message=message))


def client_logger(name: str, take: Callable[[str, str], None]) -> logging.Logger:
    """Return a logger outside the logging tree, so that the host's configuration is neither used nor changed."""
    logger = logging.Logger(name, logging.DEBUG)
    logger.addHandler(LogHandler(take))
    return logger


def quiet(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a client's configuration with a quiet logger."""
    return {**config, "logger": quiet_logger(name)}
