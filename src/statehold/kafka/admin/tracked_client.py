"""An AdminClient whose open requests are tracked, so that an answer cannot crash a process that ends.

librdkafka delivers answers on a thread of its own (`rdk:bg`), which calls into Python. If a thread still holds the
client after Python has shut down, the client is not freed. An answer in the milliseconds until the process has ended
then raises SIGSEGV: everything is committed and logged, but a supervisor sees a crash.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from statehold.common.deadline import Deadline

#: seconds that the end of the process waits: live brokers have answered by then
PATIENCE: Final = 2.0

_open: set[Future[Any]] = set()


class TrackedClient(AdminClient):
    """An AdminClient. The end of Python waits for its answers, up to `PATIENCE` seconds."""


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
    """Wait for open answers, on the main thread, before Python shuts down."""
    deadline = Deadline(PATIENCE)
    while _open and not deadline.passed:
        wait(tuple(_open), deadline.left)
