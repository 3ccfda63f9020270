"""An AdminClient whose open questions are counted, so that a process does not end under an answer.

librdkafka gives each answer to a thread of its own (`rdk:bg`), which calls into Python. A client that some thread still
holds when Python has been taken down is not freed, and an answer that comes in the milliseconds until the process is
gone ends it with SIGSEGV: after everything was committed and told, but a supervisor sees a crash.
"""

from __future__ import annotations

import atexit
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from confluent_kafka.admin import AdminClient

#: seconds that the end of the process waits; brokers that live have answered by then, others do not answer in time
PATIENCE: Final = 2.0

_open: set[Future[Any]] = set()


class TrackedClient(AdminClient):
    """An AdminClient; Python's end waits for its answers, up to `PATIENCE` seconds."""


def _counted(ask: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ask)
    def asked(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        for each in answer.values() if isinstance(answer, dict) else (answer,):
            if isinstance(each, Future):
                _open.add(each)
                each.add_done_callback(_open.discard)
        return answer

    return asked


for _name, _method in vars(AdminClient).items():
    if not _name.startswith("_") and callable(_method):
        setattr(TrackedClient, _name, _counted(_method))


@atexit.register
def await_answers() -> None:
    """By the main thread, while Python is still whole."""
    deadline = time.monotonic() + PATIENCE
    while _open and (left := deadline - time.monotonic()) > 0:
        wait(tuple(_open), left)
