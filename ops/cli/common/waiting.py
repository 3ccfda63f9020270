"""Reports a command's waits to standard error: in an outage of Kafka, and for the answers of a service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured, RestoreTimeout, StartError, StateholdError
from statehold.ops.cli.common import output
from statehold.ops.reports import acl_hint, outage

#: seconds until the first line, and between two
_FIRST: Final = 2.0
_EVERY: Final = 5.0
#: the first look is earlier, because an address that does not answer takes a second
_LOOK: Final = 1.0


class _Watch:
    """Looks at the addresses while a command runs, on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._began, self._over = settings, time.monotonic(), threading.Event()
        threading.Thread(target=self._run, name="waiting", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        due = _FIRST
        while not self._over.wait(max(0.0, due - _LOOK - self.seconds)):
            silent = outage.silent(self._settings)
            if self._over.wait(max(0.0, due - self.seconds)):
                return
            if silent:
                servers, causes = self._settings.kafka.bootstrap_servers, outage.causes_of(silent)
                output.complain(f"{servers}: waits for Kafka for {self.seconds:.0f} s: {causes}")
            due += _EVERY

    def explain(self, error: StateholdError) -> None:
        """Raise an error that names the addresses, if Kafka's silence caused `error`."""
        if not _is_silence(error):
            return
        self.end()
        silent = outage.silent(self._settings)
        if silent:
            text = outage.text_of(self._settings, acl_hint.group(), silent, self.seconds)
            raise StartError(text) from None
        if type(error) is KafkaTrouble:
            servers = self._settings.kafka.bootstrap_servers
            raise KafkaTrouble(f"{servers}: {error}. Next: run `statehold doctor`") from error


def _is_silence(error: BaseException | None) -> bool:
    found = False
    while error is not None:
        if isinstance(error, Misconfigured):
            return False
        found |= isinstance(error, (KafkaTrouble, RestoreTimeout))
        error = error.__cause__
    return found


_current: list[_Watch] = []


@contextmanager
def patient(settings: Settings) -> Iterator[None]:
    """Report an outage of Kafka from 2 s on, and name the addresses in the error that it causes.

    :raises StartError: no address answers.
    """
    watch = _Watch(settings)
    _current[:] = [watch]
    try:
        yield
    except StateholdError as error:
        watch.explain(error)
        raise
    finally:
        watch.end()
        _current.clear()


def hush() -> None:
    """Report no more, because the command draws on the whole screen."""
    for watch in _current:
        watch.end()


@contextmanager
def progress(what: str, most: float) -> Iterator[None]:
    """Report from 2 s on that the command waits for `what`, for at most `most` seconds."""
    began, over = time.monotonic(), threading.Event()

    def run() -> None:
        pause = _FIRST
        while not over.wait(pause):
            output.complain(f"waits for {what} for {time.monotonic() - began:.0f} s, {most:.0f} s at most")
            pause = _EVERY

    threading.Thread(target=run, name="progress", daemon=True).start()
    try:
        yield
    finally:
        over.set()
