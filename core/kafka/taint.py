"""Signs that a commit or abort request was sent twice, so that one of them may still be under way (pitfall P1, rule T2)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable

_LOST_CONNECTION = re.compile(r"TxnCoordinator.*(Disconnected|REQTMOUT|FAIL|timed out)|(FAIL|REQTMOUT).*TxnCoordinator", re.S)


class Taint:
    """Gathers three signals: a log line about the coordinator's connection, a slow call, more EndTxn requests than calls.

    librdkafka leaves out repeated log lines, so no single signal is enough. Fed by the producer's own callbacks, which
    run in its `poll`; read by the same thread.
    """

    def __init__(self, slow: float) -> None:
        self._slow = slow
        self._calls = 0
        self.reason = ""

    def logged(self, message: str) -> None:
        if _LOST_CONNECTION.search(message):
            self._set(f"the coordinator's connection was lost ({message.strip()[:120]})")

    def ended(self, seconds: float) -> None:
        """A commit or abort call took so long."""
        self._calls += 1
        if seconds > self._slow:
            self._set(f"a commit or abort took {seconds:.2f} s")

    def statistics(self, text: str) -> None:
        requests = sum(broker.get("req", {}).get("EndTxn", 0) for broker in json.loads(text)["brokers"].values())
        if requests > self._calls + 1:
            self._set(f"{requests} commit and abort requests were sent for {self._calls} calls")

    def _set(self, reason: str) -> None:
        self.reason = self.reason or reason


class LogHandler(logging.Handler):
    """librdkafka's log lines, each given to a function; they arrive in the thread that polls the client."""

    def __init__(self, take: Callable[[str, str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        self._take(record.levelname.lower(), record.getMessage())


def client_logger(name: str, take: Callable[[str, str], None]) -> logging.Logger:
    """A logger outside the logging tree, so that the host's configuration is neither used nor changed."""
    logger = logging.Logger(name, logging.DEBUG)
    logger.addHandler(LogHandler(take))
    return logger
