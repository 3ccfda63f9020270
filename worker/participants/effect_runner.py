"""Side effects outside Kafka: owed with the commit of their record, run after it, on a thread of their own.

What is owed stands in every mark until it is done, so a takeover runs exactly what may be missing, with the same key.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

import tenacity

from statehold.handler import EffectKey, Handler
from statehold.snapshot.format.records import Effect
from statehold.worker.common.context import EffectSetting, Pending
from statehold.worker.handler.effect_calls import call, weight


class Gone(Exception):
    """Another owner runs it."""


class EffectRunner:
    """Runs effects, each until it succeeds, those of one record key in their order. One per partition.

    `owed`, `pending`, `submit` and `close` belong to the partition's thread; the threads start with the first effect.
    """

    def __init__(self, handler: Handler[Any], about: EffectSetting) -> None:
        self._handler, self._about = handler, about
        self._done: queue.SimpleQueue[EffectKey] = queue.SimpleQueue()
        self._owed: dict[EffectKey, Effect] = {}
        self._weight = 0
        self._closing = threading.Event()
        self._lanes: list[queue.SimpleQueue[Effect | None]] = []
        self._threads: list[threading.Thread] = []

    def owed(self) -> tuple[Effect, ...]:
        """What was submitted and is not known to be done."""
        self._settle()
        return tuple(self._owed.values())

    def pending(self) -> Pending:
        self._settle()
        oldest = next(iter(self._owed.values())).time if self._owed else 0
        return Pending(len(self._owed), self._weight, oldest)

    def submit(self, effects: Sequence[Effect]) -> None:
        """After the commit of the mark that names them; does not block."""
        if effects and not self._threads:
            self._start()
        for effect in effects:
            if effect.key not in self._owed:
                self._owed[effect.key] = effect
                self._weight += weight((effect,))
                self._lanes[effect.lane % len(self._lanes)].put(effect)

    def close(self, timeout: float) -> tuple[Effect, ...]:
        """Give it `timeout` seconds to finish; what is still owed then is left to the next owner."""
        until = monotonic() + timeout
        for lane in self._lanes:
            lane.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        self._closing.set()
        return self.owed()

    def _settle(self) -> None:
        while not self._done.empty():
            effect = self._owed.pop(self._done.get(), None)
            self._weight -= weight((effect,)) if effect is not None else 0

    def _start(self) -> None:
        for number in range(self._about.settings.threads):
            lane: queue.SimpleQueue[Effect | None] = queue.SimpleQueue()
            name = self._about.name if number == 0 else f"{self._about.name}.{number}"
            self._lanes.append(lane)
            self._threads.append(threading.Thread(target=self._run, args=(lane,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def _run(self, lane: queue.SimpleQueue[Effect | None]) -> None:
        while (effect := lane.get()) is not None and not self._closing.is_set():
            if not self._attempt(effect):
                return
            self._done.put(effect.key)

    def _attempt(self, effect: Effect) -> bool:
        """At least once: until it returns, or until the partition goes away."""
        retrying = tenacity.Retrying(
            # SystemExit too: it would end this thread unseen, and nothing that is owed would run any more.
            retry=tenacity.retry_if_not_exception_type(Gone),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=self._about.settings.max_backoff),
            stop=tenacity.stop_when_event_set(self._closing),
            sleep=tenacity.sleep_using_event(self._closing),
            before_sleep=lambda state: self._tell(effect, state),
        )
        try:
            retrying(self._call, effect)
        except (tenacity.RetryError, Gone):
            return False
        return True

    def _call(self, effect: Effect) -> None:
        if self._closing.is_set() or self._about.lost():
            raise Gone
        call(self._handler, effect)

    def _tell(self, effect: Effect, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            self._about.report(effect, error, state.attempt_number)
