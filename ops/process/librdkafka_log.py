"""librdkafka's own log lines, as an operator wants them: serious ones once, the rest at debug."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from structlog.typing import EventDict

#: librdkafka retries by itself, so these are no errors of ours; what it calls critical ends the client.
_LEVELS: Final = {"critical": "error", "error": "warning", "warning": "warning"}
#: `FAIL [rdkafka#producer-4] [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: Connect to ... failed: ...`
_LINE: Final = re.compile(r"(?P<code>[A-Z_]+) \[[^\]]*\] (?:\[thrd:[^\]]*\]: )?(?P<text>.*)", re.DOTALL)
#: `_TRANSPORT(-195): 127.0.0.1:9092/1: Connect to ... failed: ...`, as `error_cb` tells the same thing again
_ERROR: Final = re.compile(r"(?P<code>[A-Z_]+)\(-?\d+\): (?P<text>.*)", re.DOTALL)
#: who in the client says it, before what is said: a connection, a coordinator
_SPEAKER: Final = re.compile(r"^(?:(?:Group|Txn)Coordinator: )?(?:\S+:\d+(?:/\w+)?: )?")
#: counts, durations, and what librdkafka left out itself differ from line to line; not the digits of an address
_PASSING: Final = re.compile(r"(?<!\S)\d+(?=ms\b|\s)|, \d+ identical error\(s\) suppressed")
_REMEMBERED: Final = 200


class KafkaLines:
    """A structlog processor that says how severe an event is; any thread.

    While a broker is away each client says so several times a second, and there is one client per partition.
    The same thing is told once in `every` seconds, with the number of times it was left out before.
    """

    def __init__(self, every: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._told: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def __call__(self, _logger: Any, method: str, fields: EventDict) -> EventDict:
        if fields.get("event") != "kafka_log":
            fields["level"] = method
            return fields
        fields["level"] = level = _LEVELS.get(str(fields.get("level")), "debug")
        code, text = split(str(fields.pop("message", "")))
        if level != "debug":
            left_out = self._left_out(_PASSING.sub("", _SPEAKER.sub("", text)))
            if left_out is None:
                raise structlog.DropEvent
            if left_out:
                fields["left_out"] = left_out
        fields["code"], fields["message"] = code or None, text
        return fields

    def _left_out(self, topic: str) -> int | None:
        """How often this was left out since it was told last; None when it must be left out now."""
        now = self._clock()
        with self._lock:
            last, count = self._told.get(topic, (-self._every, 0))
            if now - last < self._every:
                self._told[topic] = (last, count + 1)
                return None
            if len(self._told) >= _REMEMBERED:
                self._told.clear()
            self._told[topic] = (now, 0)
            return count


def split(message: str) -> tuple[str, str]:
    """The short code of a line, '' without one, and what it says without the client's and thread's name."""
    found = _LINE.fullmatch(message) or _ERROR.fullmatch(message)
    return (found["code"], found["text"]) if found else ("", message)
