"""What every service under test does as a process: it ends with the test, and logs one JSON object a line."""

from __future__ import annotations

import os
import threading

import structlog
from structlog.typing import Processor


def end_with_the_test() -> None:
    """However the test's process dies: then its end of this process's standard input is closed."""
    threading.Thread(target=_await_the_end, daemon=True).start()


def _await_the_end() -> None:
    os.read(0, 1)
    os._exit(9)


def log_json(*first: Processor) -> None:
    """To standard output; `first` see each event before it is written. PROBE_LEVEL: the least level, else info."""
    structlog.configure(
        processors=[
            *first,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(os.environ.get("PROBE_LEVEL", "info")),
        logger_factory=structlog.WriteLoggerFactory(),
    )
