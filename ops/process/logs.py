"""Logging of a process that belongs to statehold: one line per event, for people or for programs.

Called by `statehold run` and never at import: a service that is embedded keeps its host's logging.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from statehold.config.sections.service import LogSettings
from statehold.ops.process.librdkafka_log import KafkaLines

_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send all that is logged to `stream` (standard error): ours, the standard library's, uncaught errors.

    Changes process-wide state: for the main thread of a process that belongs to statehold.
    """
    stream = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            KafkaLines(),
            _Threshold(settings.level),
            _timestamp,
            structlog.processors.format_exc_info,
            _arrange,
            *_renderers(settings, stream),
        ],
        # Nothing is filtered before KafkaLines has said how serious a line of librdkafka is.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=_Writer(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=_NUMBERS[settings.level], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def configure_quietly(settings: LogSettings, stream: TextIO | None = None) -> None:
    """The same for a command that ends by itself and tells its errors: the usual level would only disturb."""
    configure_logging(replace(settings, level="error") if settings.level == "info" else settings, stream)


def wants_json(settings: LogSettings, stream: TextIO) -> bool:
    """Whether lines are JSON objects: as set, or where nobody watches a terminal."""
    return settings.format == "json" or (settings.format == "auto" and not stream.isatty())


def _renderers(settings: LogSettings, stream: TextIO) -> list[Processor]:
    if wants_json(settings, stream):
        return [_to_json]
    # Plain tracebacks: the others show local variables, and with them customers' data.
    console = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        sort_keys=False,
        pad_event_to=18,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_without_nothing, console]


class _Threshold:
    """Drops what is less severe than the setting."""

    def __init__(self, level: str) -> None:
        self._least = _NUMBERS[level]

    def __call__(self, _logger: Any, _method: str, fields: EventDict) -> EventDict:
        if _NUMBERS.get(fields["level"], 50) < self._least:
            raise structlog.DropEvent
        return fields


def _timestamp(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    fields["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return fields


def _arrange(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    """What and when come first: a line is read from the left."""
    head = ("event", "timestamp", "level")
    return {name: fields[name] for name in head} | {k: v for k, v in fields.items() if k not in head}


def _without_nothing(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    """For people: a field without a value says nothing. Programs want the same fields every time."""
    return {name: value for name, value in fields.items() if value is not None}


def _to_json(_logger: Any, _method: str, fields: EventDict) -> str:
    return json.dumps(fields, default=str, ensure_ascii=False)


class _Writer:
    """Writes whole lines, from any thread. A reader that went away must not stop a partition."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, *_: Any) -> _Writer:
        """Every logger writes here: this is the logger factory too."""
        return self

    def _write(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a closed pipe, a full disk, a character that cannot be encoded
                return

    debug = info = warning = error = critical = _write


class _Bridge(logging.Handler):
    """What the standard library's loggers say, in the user's handler or a library, as events of one form."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            names = [name for name, number in _NUMBERS.items() if number <= record.levelno]
            write = getattr(structlog.get_logger(), names[-1] if names else "debug")
            exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
            write(record.getMessage(), logger=record.name, exc_info=exc_info)
        except Exception:  # noqa: BLE001 - the standard library's rule: logging raises nothing into the program
            self.handleError(record)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    structlog.get_logger().critical("uncaught", error=kind.__name__, cause=str(error), exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    """No thread dies unseen (invariant 10)."""
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    structlog.get_logger().critical(
        "thread_died",
        thread=args.thread.name if args.thread else None,
        error=args.exc_type.__name__,
        cause=str(args.exc_value),
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
