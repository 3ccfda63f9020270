"""Runs the worker of one partition without its thread and without real time: every wait moves a simulated clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from statehold.api.handler import EffectKey, Handler
from statehold.snapshot.format.records import Effect
from statehold.testing.memory.clock import ManualClock
from statehold.worker.calls.event_loop import process_loop
from statehold.worker.common.context import EffectReport, Pending, Tools
from statehold.worker.common.lifecycle import Event, Phase
from statehold.worker.common.reporting import log_failure
from statehold.worker.common.signals import Signals
from statehold.worker.handler import effect_calls
from statehold.worker.handler.engine import Engine
from statehold.worker.loop import LiveLoop
from statehold.worker.partition import PartitionWorker, new_mailbox
from statehold.worker.recovery.recovery import Recovery
from statehold.worker.recovery.replay import GapReplay


class EventLog:
    """Keeps the log events of the worker instead of writing them: a `statehold.telemetry.log_events.Log`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def bind(self, **fields: object) -> EventLog:
        return self

    def _note(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    debug = info = warning = error = _note


class EffectCall(NamedTuple):
    """A side effect that ran: the key it was called with, the function's name, its further arguments."""

    key: EffectKey
    function: str
    arguments: tuple[Any, ...]


class InlineEffects:
    """Runs the effects at once, on the calling thread; one that raises stays pending until `retry`."""

    def __init__(self, handler: Handler[Any], report: EffectReport, calls: list[EffectCall], *, run: bool) -> None:
        self._handler, self._report, self._calls, self._run = handler, report, calls, run
        #: raised in the place of an effect: by its function's name, or '' for all of them
        self.failing: dict[str, Exception] = {}
        self._pending: dict[EffectKey, Effect] = {}
        self._attempts: dict[EffectKey, int] = {}

    def unfinished(self) -> tuple[Effect, ...]:
        return tuple(self._pending.values())

    def pending(self) -> Pending:
        oldest = next(iter(self._pending.values())).time if self._pending else 0
        return Pending(len(self._pending), effect_calls.weight(self._pending.values()), oldest)

    def submit(self, submitted: Sequence[Effect]) -> None:
        self._pending.update({effect.key: effect for effect in submitted})
        self.retry()

    def close(self, timeout: float) -> tuple[Effect, ...]:
        return self.unfinished()

    def pending_calls(self) -> list[EffectCall]:
        return [
            EffectCall(key, _name(each), tuple(effect_calls.arguments(each))) for key, each in self._pending.items()
        ]

    def retry(self) -> None:
        """Run the pending effects in order; stop at the first failure, as the real runner does."""
        for key, effect in list(self._pending.items()):
            try:
                self._call(effect)
            except Exception as error:  # noqa: BLE001 - an effect may raise anything
                self._attempts[key] = self._attempts.get(key, 0) + 1
                self._report(effect, error, self._attempts[key])
                return
            del self._pending[key]
            self._calls.append(EffectCall(key, _name(effect), tuple(effect_calls.arguments(effect))))

    def _call(self, effect: Effect) -> None:
        error = self.failing.get(_name(effect)) or self.failing.get("")
        if error is not None:
            raise error
        if self._run:
            returned = effect_calls.call(self._handler, effect)
            if isinstance(returned, Coroutine):
                process_loop().run(returned)


def _name(effect: Effect) -> str:
    return effect.function.rpartition(":")[2].rpartition(".")[2]


class Later:
    """Runs a background call in one thread: when the worker waits for it, or after a number of checks.

    So the worker handles records ahead of a commit.
    """

    def __init__(self, call: Callable[[], None], name: str, patience: int = 7) -> None:
        self._call, self._patience = call, patience
        self._ended: BaseException | bool = False

    def ended(self, within: float = 0.0) -> bool:
        self._patience -= 1
        if within > 0 or self._patience <= 0:
            self._run()
        return self._ended is not False

    def wait(self) -> None:
        self._run()
        if isinstance(self._ended, BaseException):
            raise self._ended

    def _run(self) -> None:
        if self._ended is False:
            try:
                self._call()
                self._ended = True
            except Exception as error:  # noqa: BLE001  raised where it is waited for
                self._ended = error


class _ClockEvent(threading.Event):
    """Waiting for it takes no time, but the clock moves as if it had."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._clock.advance(timeout or 0.0)
        return self.is_set()


class SteppedWorker(PartitionWorker):
    """Runs the partition's worker by steps: each `step` is one phase, or one round of the live loop."""

    def __init__(self, tools: Tools, clock: ManualClock) -> None:
        signals = Signals()
        signals.any = _ClockEvent(clock)
        mailbox = new_mailbox(tools)
        take = mailbox.take
        mailbox.take = lambda room, timeout: take(room, min(timeout, 0.0))  # type: ignore[method-assign]
        super().__init__(tools, signals, mailbox)
        self._is_waiting = False

    @property
    def cause(self) -> BaseException | None:
        return self._life.cause

    @property
    def live(self) -> LiveLoop | None:
        return self._takeover.live if self.phase is Phase.LIVE else None

    @property
    def engine(self) -> Engine | None:
        return self._takeover.live.engine if self._takeover.live is not None else None

    @property
    def in_flight(self) -> bool:
        """True while a commit runs. It ends with the next step unless there are records to handle."""
        return self.live is not None and self.live.transaction.commit is not None

    @property
    def moving(self) -> bool:
        """True if there is work to do without new records."""
        if (live := self.live) is not None:
            transaction, buffer = live.transaction, live.transaction.buffer
            waiting = self.mailbox.depth > 0 or bool(buffer.todo) or buffer.failure is not None
            behind = buffer.barrier is not None and buffer.failure is None and buffer.reached(transaction.position)
            full = transaction.policy.since is not None and transaction.policy.room() == 0
            return (waiting and not (live.participants.on_blocks and live.participants.blocked())) or behind or full
        return self.phase not in (Phase.FAILED, Phase.CLOSED)

    def step(self) -> None:
        """Do one phase's work; failures become phases, as in the thread."""
        if self.phase is Phase.ASSIGNED:
            self._go(self._signals.event() or Event.START)
        elif self.phase is not Phase.CLOSED:
            self._step(self._phases[self.phase])

    def commit(self) -> None:
        """Commit what is open, if anything is."""
        if self.live is not None and self.live.uncommitted:
            self._step(self._finish)

    def _finish(self) -> None:
        assert self.live is not None
        pipeline = self.live.pipeline
        if pipeline.state.policy.since is None:
            pipeline.settle()
        else:
            pipeline.commit()

    def view(self) -> Engine:
        """Return an engine of its own with the committed state of a failed partition, restored and replayed."""
        recovery = Recovery(self._tools, self._signals)
        recovery.fence(lambda: None).drop()  # ends the transaction that the failure may have left open
        recovered = recovery.restore()
        GapReplay(self._tools, self._signals, recovery.progress, recovered.engine, recovered.restored).run()
        return recovered.engine

    def crash(self) -> None:
        """Stop without a call to the broker: the open transaction stays open."""
        self._takeover.live = None

    def _work(self) -> Event | None:
        if self._signals.any.is_set():
            event = self._signals.event()
            if event in (Event.LOST, Event.REVOKED):
                return event
            self._signals.raise_failure()
        assert self.live is not None
        self.live.turn()
        return None

    def _wait_for_retry(self) -> Event | None:
        if not self._is_waiting:
            self._is_waiting = True
            cause = self.cause
            self._takeover.release()
            log_failure(self._tools, cause)
        event = self._signals.event()
        self._is_waiting = event is None
        return event


#: makes the tools of a worker: producer, readers, clocks
ToolsOf = Callable[[int], Tools]
