"""Configures the logging of a process that statehold owns: one line per event, for people or for programs.

`statehold run` calls it, never an import, because an embedded service keeps its host's logging.
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

from statehold.config.sections.service import LogSettings
from statehold.errors import text_of
from statehold.telemetry.structlog_import import import_structlog

import_structlog()
import structlog  # noqa: E402
from structlog.typing import EventDict, Processor  # noqa: E402

from statehold.ops.process.librdkafka_log import KafkaLines  # noqa: E402

_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error): statehold's, the standard library's, uncaught errors.

    It changes process-wide state; call it on the main thread of a process that statehold owns.
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
        # Nothing is filtered before KafkaLines has set the severity of librdkafka's lines.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=_Writer(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=_NUMBERS[settings.level], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def configure_quietly(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Log errors only, for a command that ends by itself and prints its errors."""
    configure_logging(replace(settings, level="error") if settings.level == "info" else settings, stream)


def wants_json(settings: LogSettings, stream: TextIO) -> bool:
    """Return whether lines are JSON: as set, or if the stream is not a terminal."""
    return settings.format == "json" or (settings.format == "auto" and not stream.isatty())


def _renderers(settings: LogSettings, stream: TextIO) -> list[Processor]:
    if wants_json(settings, stream):
        return [_to_json]
    # Plain tracebacks, because richer ones show local variables and so customers' data.
    console = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        sort_keys=False,
        pad_event_to=18,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_without_nothing, console]


class _Threshold:
    """Drops events below the configured level."""

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
    """Put time and event first, because people read a line from the left."""
    head = ("event", "timestamp", "level")
    return {name: fields[name] for name in head} | {k: v for k, v in fields.items() if k not in head}


def _without_nothing(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    """Drop fields without a value, for people; programs want the same fields every time."""
    return {name: value for name, value in fields.items() if value is not None}


def _to_json(_logger: Any, _method: str, fields: EventDict) -> str:
    return json.dumps(fields, default=str, ensure_ascii=False)


class _Writer:
    """Writes whole lines, from any thread, and ignores errors, because a closed pipe must not stop a partition."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, *_: Any) -> _Writer:
        """Return itself, as the logger factory."""
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
    """Passes records of the standard library's loggers on as events."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            names = [name for name, number in _NUMBERS.items() if number <= record.levelno]
            write = getattr(structlog.get_logger(), names[-1] if names else "debug")
            exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
            write(record.getMessage(), logger=record.name, exc_info=exc_info)
        except Exception:  # noqa: BLE001 - the standard library's rule: logging raises nothing into the program
            self.handleError(record)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    structlog.get_logger().critical(
        "uncaught", error=kind.__name__, cause=text_of(error), exc_info=(kind, error, trace)
    )


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    """Log the error that ends a thread (rule A6)."""
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    structlog.get_logger().critical(
        "thread_died",
        thread=args.thread.name if args.thread else None,
        error=args.exc_type.__name__,
        cause=str(args.exc_value),
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
