"""Side effects outside Kafka: owed with the commit of their record, run after it, on a thread of their own.

What is owed stands in every mark until it is done, so a takeover runs exactly what may be missing, with the same key.
"""

from __future__ import annotations

import importlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import tenacity

from holdfast.errors import UsageError
from holdfast.handler import EffectKey, Handler
from holdfast.snapshot.records import Effect

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode

#: what to tell of an attempt that raised: the effect, the error, how many attempts so far
Report = Callable[[Effect, BaseException, int], None]


def note(handler: Handler[Any], function: Callable[..., object], key: EffectKey, args: tuple[Any, ...]) -> Effect:
    """The effect as it stands in the mark.

    :raises UsageError: the function cannot be found again after a restart, or an argument is no plain data.
    """
    name = _name(handler, function)
    try:
        return Effect(name, *key, _encode(args))
    except (TypeError, OverflowError) as error:
        raise UsageError(f"effect {name}: its arguments must be plain data (msgpack): {error}") from error


def _name(handler: Handler[Any], function: Callable[..., object]) -> str:
    qualified: str = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__self__", None) is handler:
        return f".{function.__name__}"
    name = f"{getattr(function, '__module__', '')}:{qualified}"
    try:
        if find(handler, name) is function:
            return name
    except (ImportError, AttributeError):
        pass
    raise UsageError(
        f"effect {qualified!r} could not be found again after a restart: give a method of the handler or a function "
        f"of a module"
    )


def find(handler: Handler[Any], name: str) -> Callable[..., object]:
    module, _, path = name.partition(":")
    found: Any = handler if name.startswith(".") else importlib.import_module(module)
    for attribute in (path or name[1:]).split("."):
        found = getattr(found, attribute)
    function: Callable[..., object] = found
    return function


def call(handler: Handler[Any], effect: Effect) -> None:
    """Run it now, once. Raises whatever it raises."""
    find(handler, effect.function)(effect.key, *arguments(effect))


def arguments(effect: Effect) -> list[Any]:
    return _decode(effect.arguments)


class Effects(Protocol):
    """Whoever runs them; every method belongs to the partition's thread."""

    def owed(self) -> tuple[Effect, ...]: ...

    def submit(self, effects: Sequence[Effect]) -> None: ...

    def close(self, timeout: float) -> tuple[Effect, ...]: ...


class EffectRunner:
    """Runs effects one after the other, each until it succeeds. One per partition; its thread starts with the first.

    `owed` and `submit` belong to the partition's thread.
    """

    def __init__(self, handler: Handler[Any], name: str, report: Report) -> None:
        self._handler, self._name, self._report = handler, name, report
        self._queue: queue.SimpleQueue[Effect | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[EffectKey] = queue.SimpleQueue()
        self._owed: dict[EffectKey, Effect] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def owed(self) -> tuple[Effect, ...]:
        """What was submitted and is not known to be done."""
        while not self._done.empty():
            self._owed.pop(self._done.get(), None)
        return tuple(self._owed.values())

    def submit(self, effects: Sequence[Effect]) -> None:
        """After the commit of the mark that names them; does not block."""
        if effects and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        for effect in effects:
            if effect.key not in self._owed:
                self._owed[effect.key] = effect
                self._queue.put(effect)

    def close(self, timeout: float) -> tuple[Effect, ...]:
        """Give it `timeout` seconds to finish; what is still owed then is left to the next owner."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
            self._closing.set()
        return self.owed()

    def _run(self) -> None:
        while (effect := self._queue.get()) is not None and not self._closing.is_set():
            if self._attempt(effect):
                self._done.put(effect.key)

    def _attempt(self, effect: Effect) -> bool:
        """At least once: until it returns, or until the partition goes away."""
        retrying = tenacity.Retrying(
            # SystemExit too: it would end this thread unseen, and nothing that is owed would run any more.
            retry=tenacity.retry_if_exception_type(BaseException),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=30),
            stop=tenacity.stop_when_event_set(self._closing),
            sleep=tenacity.sleep_using_event(self._closing),
            before_sleep=lambda state: self._tell(effect, state),
        )
        try:
            retrying(call, self._handler, effect)
        except tenacity.RetryError:
            return False
        return True

    def _tell(self, effect: Effect, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            self._report(effect, error, state.attempt_number)
