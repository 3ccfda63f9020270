"""Run side effects outside Kafka on separate threads, after the commit of their record.

Every commit record names the pending effects, so a new owner runs exactly those that may be missing, with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import tenacity

from statehold.api.handler import EffectKey, Handler
from statehold.common.threads import Thread, ThreadQueue
from statehold.health.fork_guard import no_fork
from statehold.snapshot.format.records import Effect
from statehold.worker.calls.event_loop import process_loop
from statehold.worker.common.context import EffectSetting, Pending
from statehold.worker.handler.effect_calls import call, weight

#: starts a coroutine, for which the caller waits
StartCoroutine = Callable[[Coroutine[Any, Any, Any]], Future[Any]]


class EffectAbandoned(Exception):
    """Another owner runs the effect."""


class EffectRunner:
    """Runs effects, each until it succeeds, those of one record key in order. One per partition.

    The partition's thread calls all public methods; the threads start with the first effect. The coroutine of an
    `async def` runs on the process's event loop, and the effect's thread waits for its end.
    """

    def __init__(
        self,
        handler: Handler[Any],
        about: EffectSetting,
        start: StartCoroutine = lambda coroutine: process_loop().start(coroutine),
    ) -> None:
        self._handler, self._about, self._start_coroutine = handler, about, start
        #: coroutines in progress
        self._awaited: set[Future[Any]] = set()
        self._done: ThreadQueue = about.threads.queue()
        self._pending: dict[EffectKey, Effect] = {}
        self._weight = 0
        self._closing = about.threads.event()
        self._lanes: list[ThreadQueue] = []
        self._threads: list[Thread] = []

    def unfinished(self) -> tuple[Effect, ...]:
        """Return the effects that were submitted and are not known to be done."""
        self._remove_done()
        return tuple(self._pending.values())

    def pending(self) -> Pending:
        self._remove_done()
        oldest = next(iter(self._pending.values())).time if self._pending else 0
        return Pending(len(self._pending), self._weight, oldest)

    def submit(self, effects: Sequence[Effect]) -> None:
        """Queue effects after the commit of the record that names them; does not block."""
        if effects and not self._threads:
            self._start()
        for effect in effects:
            if effect.key not in self._pending:
                self._pending[effect.key] = effect
                self._weight += weight((effect,))
                self._lanes[effect.lane % len(self._lanes)].put(effect)

    def close(self, timeout: float) -> tuple[Effect, ...]:
        """Wait at most `timeout` seconds, then cancel coroutines; the next owner runs the effects still pending."""
        until = self._about.clock() + timeout
        for lane in self._lanes:
            lane.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - self._about.clock()))
        self._closing.set()
        for awaited in tuple(self._awaited):
            awaited.cancel()
        return self.unfinished()

    def _remove_done(self) -> None:
        while not self._done.empty():
            effect = self._pending.pop(self._done.get(), None)
            self._weight -= weight((effect,)) if effect is not None else 0

    def _start(self) -> None:
        threads = self._about.threads
        for number in range(self._about.settings.threads):
            lane = threads.queue()
            name = self._about.name if number == 0 else f"{self._about.name}.{number}"
            self._lanes.append(lane)
            self._threads.append(threads.thread(partial(self._run, lane), name))
        for thread in self._threads:
            thread.start()

    def _run(self, lane: ThreadQueue) -> None:
        with no_fork():
            while (effect := lane.get()) is not None and not self._closing.is_set():
                if not self._attempt(effect):
                    return
                self._done.put(effect.key)

    def _attempt(self, effect: Effect) -> bool:
        """Call the effect until it returns, or until the partition closes."""
        closing = self._closing
        retrying = tenacity.Retrying(
            # Retry SystemExit, too, because it would end this thread silently and no pending effect would run.
            retry=tenacity.retry_if_not_exception_type(EffectAbandoned),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=self._about.settings.max_backoff),
            stop=lambda _: closing.is_set(),
            sleep=closing.wait,  # type: ignore[arg-type]  # tenacity ignores its result
            before_sleep=lambda state: self._report(effect, state),
        )
        try:
            retrying(self._call, effect)
        except (tenacity.RetryError, EffectAbandoned):
            return False
        return True

    def _call(self, effect: Effect) -> None:
        if self._closing.is_set() or self._about.lost():
            raise EffectAbandoned
        returned = call(self._handler, effect)
        if isinstance(returned, Coroutine):
            self._wait_for(self._owned(returned))

    async def _owned(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Check again, because the event loop may have been busy since the effect's thread has checked."""
        if self._closing.is_set() or self._about.lost():
            coroutine.close()
            raise EffectAbandoned
        await coroutine

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its end. Raises what it raises, and CancelledError after `close`."""
        awaited = self._start_coroutine(coroutine)
        self._awaited.add(awaited)
        try:
            if self._closing.is_set():  # since the attempt began: then `close` may not have seen it
                awaited.cancel()
            awaited.result()
        finally:
            self._awaited.discard(awaited)
            del awaited  # an error that it holds refers to this frame

    def _report(self, effect: Effect, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            self._about.report(effect, error, state.attempt_number)
