"""An AdminClient that an answer cannot crash: neither when it is freed, nor when the process ends.

librdkafka delivers answers on a thread of its own (`rdk:bg`), which calls into Python, and a client that is freed on
its own thread ends the process (librdkafka asserts that). That happens if a callback of a request has the last
reference, or if Python's collector runs on that thread. So the real client is kept here, and freed by one thread.

If a thread still holds the client after Python has shut down, the client is not freed. An answer in the milliseconds
until the process has ended then raises SIGSEGV: everything is committed and logged, but a supervisor sees a crash.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from statehold.common.deadline import Deadline

#: seconds that the end of the process waits: live brokers have answered by then
PATIENCE: Final = 2.0

_open: set[Future[Any]] = set()
_numbers: Final = itertools.count()
#: the real clients, by number
_clients: dict[int, AdminClient] = {}
#: numbers of clients to free; None: the end of the process waits for those before it
_unreferenced: SimpleQueue[int | None] = SimpleQueue()
_all_freed: Final = threading.Event()


class TrackedClient(AdminClient):
    """An AdminClient. It may be dropped at any time and by any thread, also while a request is under way.

    The end of Python waits for its answers, up to `PATIENCE` seconds.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        # Without the base class's own __init__, so this object is no client of librdkafka.
        self._number = next(_numbers)
        _clients[self._number] = AdminClient(dict(config))
        weakref.finalize(self, _unreferenced.put, self._number).atexit = False
        _start_freeing()


def _passed_on(name: str) -> Callable[..., Any]:
    method = getattr(AdminClient, name)

    @functools.wraps(method)
    def asked(self: TrackedClient, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = method(_clients[self._number], *args, **kwargs)
        except Exception as error:  # noqa: BLE001  it is raised again
            raise error.with_traceback(None)  # noqa: B904  the same error; frames would keep the real client
        for each in answer.values() if isinstance(answer, dict) else (answer,):
            if isinstance(each, Future):
                _open.add(each)
                each.add_done_callback(_open.discard)
        return answer

    return asked


for _name in dir(AdminClient):
    if not _name.startswith("_") and callable(getattr(AdminClient, _name)):
        setattr(TrackedClient, _name, _passed_on(_name))


@functools.cache
def _start_freeing() -> None:
    threading.Thread(target=_free, name="free-clients", daemon=True).start()


def _free() -> None:
    while True:
        number = _unreferenced.get()
        if number is None:
            _all_freed.set()
        else:
            del _clients[number]


@atexit.register
def await_answers() -> None:
    """Wait for open answers, on the main thread, before Python shuts down; then for clients that are being freed."""
    deadline = Deadline(PATIENCE)
    while _open and not deadline.passed:
        wait(tuple(_open), deadline.left)
    if _start_freeing.cache_info().currsize:
        _unreferenced.put(None)
        _all_freed.wait(deadline.left)
