"""Filters librdkafka's log lines: serious ones are logged once, the rest at debug."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from structlog.typing import EventDict

#: librdkafka retries these by itself, so they are no errors; what it calls critical ends the client.
_LEVELS: Final = {"critical": "error", "error": "warning", "warning": "warning"}
#: `FAIL [rdkafka#producer-4] [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: Connect to ... failed: ...`
_LINE: Final = re.compile(r"(?P<code>[A-Z_]+) \[[^\]]*\] (?:\[thrd:[^\]]*\]: )?(?P<text>.*)", re.DOTALL)
#: `_TRANSPORT(-195): 127.0.0.1:9092/1: Connect to ... failed: ...`, as `error_cb` reports the same event
_ERROR: Final = re.compile(r"(?P<code>[A-Z_]+)\(-?\d+\): (?P<text>.*)", re.DOTALL)
#: the part of the client that logs, before the text: a connection, a coordinator
_SPEAKER: Final = re.compile(r"^(?:(?:Group|Txn)Coordinator: )?(?:\S+:\d+(?:/\w+)?: )?")
#: parts that differ between repetitions: counts, durations, librdkafka's own suppression; not an address
_PASSING: Final = re.compile(r"(?<!\S)\d+(?=ms\b|\s)|, \d+ identical error\(s\) suppressed")
_REMEMBERED: Final = 200
#: a transaction that a rebalance of the group has overtaken; the event `rolled_back` reports it
_OVERTAKEN: Final = re.compile(
    r"\((?:ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID|REBALANCE_IN_PROGRESS|STALE_MEMBER_EPOCH|FENCED_INSTANCE_ID)\b"
)


class KafkaLines:
    """A structlog processor that sets the severity of librdkafka's lines; any thread may call it.

    While a broker is down each client logs several times a second, and there is one client per partition.
    The same line is logged once in `every` seconds, with the number of suppressed repetitions.
    """

    def __init__(self, every: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._reported: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def __call__(self, _logger: Any, method: str, fields: EventDict) -> EventDict:
        if fields.get("event") != "kafka_log":
            fields["level"] = method
            return fields
        level = _LEVELS.get(str(fields.get("level")), "debug")
        code, text = split(str(fields.pop("message", "")))
        if code == "TXNERR" and level == "warning" and _OVERTAKEN.search(text):
            level = "debug"
        fields["level"] = level
        if level != "debug":
            left_out = self._left_out(_PASSING.sub("", _SPEAKER.sub("", text)))
            if left_out is None:
                raise structlog.DropEvent
            if left_out:
                fields["left_out"] = left_out
        fields["code"], fields["message"] = code or None, text
        return fields

    def _left_out(self, topic: str) -> int | None:
        """Return the number of suppressed repetitions since the last log; None to suppress this one."""
        now = self._clock()
        with self._lock:
            last, count = self._reported.get(topic, (-self._every, 0))
            if now - last < self._every:
                self._reported[topic] = (last, count + 1)
                return None
            if len(self._reported) >= _REMEMBERED:
                self._reported.clear()
            self._reported[topic] = (now, 0)
            return count


def split(message: str) -> tuple[str, str]:
    """Return the short code of a line ('' without one), and its text without the names of client and thread."""
    found = _LINE.fullmatch(message) or _ERROR.fullmatch(message)
    return (found["code"], found["text"]) if found else ("", message)
