"""Handles records again that were handled before: for a restore, or for a tool that continues from an older state."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.declared.policies import policy_of
from statehold.ports import Cancelled
from statehold.record import Message
from statehold.worker.common.signals import Signals
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed


def handle_again(engine: Engine, batch: Sequence[Message], signals: Signals) -> None:
    """Handle a batch with a muted engine. If on_batch fails, handle the records one by one, as the live loop does.

    :raises HandlingFailed: the handler fails. :raises Cancelled: the partition leaves.
    """
    rest, one_by_one, tries = batch, False, ReplayRetries(engine, signals)
    while rest:
        try:
            handled = engine.run(rest, one_by_one=one_by_one)
        except HandlingFailed as poison:
            engine.rollback()
            if not isinstance(poison, BatchFailed) and not tries.again(poison):
                raise
            one_by_one = one_by_one or isinstance(poison, BatchFailed)
            continue
        commit(engine)
        if handled < len(rest) and signals.leaving():
            raise Cancelled
        rest = rest[handled:]


def commit(engine: Engine) -> None:
    """Make the replayed changes part of the state; nothing else keeps them."""
    engine.state.commit(engine.freeze(), delta=False)
    engine.take_commands()


class ReplayRetries:
    """Counts the retries in place during a replay: a record that first failed in the live loop may fail again now.

    No other policy applies, because a dead-lettered record is always before the delta at which a replay begins.
    """

    def __init__(self, engine: Engine, signals: Signals) -> None:
        self._kind, self._signals = type(engine.handler), signals
        self._at, self._attempts = -1, 0

    def again(self, poison: HandlingFailed) -> bool:
        """Wait for the back-off and return whether to handle it again. :raises Cancelled: the partition leaves."""
        policy = policy_of(self._kind, poison.error) if self._kind.on_failure else None
        self._attempts = self._attempts + 1 if poison.offset == self._at else 1
        self._at = poison.offset
        if policy is None or self._attempts > policy.retries:
            return False
        if self._signals.pause(policy.backoff(self._attempts)) and self._signals.leaving():
            raise Cancelled
        return True
