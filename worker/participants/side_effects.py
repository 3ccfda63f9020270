"""Side effects of a partition: each commit record names those that are pending, its commit starts the new ones."""

from __future__ import annotations

from functools import partial
from typing import Final

from statehold.errors import class_and_text
from statehold.snapshot.format.records import CommitRecord, Effect
from statehold.telemetry import metrics
from statehold.worker.common.context import Effects, EffectSetting, Pending, Tools
from statehold.worker.common.signals import Signals
from statehold.worker.handler.effect_calls import weight
from statehold.worker.handler.effect_recorder import effect_room
from statehold.worker.handler.engine import Engine
from statehold.worker.participants.effect_runner import EffectRunner
from statehold.worker.transaction.participants import CommitDraft, Participant
from statehold.worker.transaction.state import TransactionState

#: least seconds between two commits of an idle partition that only record which effects are done
_RECORD: Final = 0.5
#: characters of an exception's text in the log
_TEXT: Final = 500


class SideEffects(Participant):
    """Used by the partition's thread; joins with the first effect."""

    def __init__(self, tools: Tools, signals: Signals, engine: Engine, state: TransactionState) -> None:
        self._tools, self._engine, self._state = tools, engine, state
        self._room = effect_room(tools.settings)
        name = f"effects-{tools.place.partition}"
        about = EffectSetting(
            name, partial(_effect_failed, tools), tools.settings.effects, signals.lost, tools.clock, tools.threads
        )
        self._runner: Effects = (tools.effects or EffectRunner)(engine.handler, about)
        #: when a commit record last named the pending effects (monotonic seconds)
        self._recorded = tools.clock()
        #: pending effects, for any thread
        self.pending = Pending()

    def opened(self, record: CommitRecord) -> None:
        """Submit the effects that an earlier owner may not have run."""
        self._runner.submit(record.effects)
        self._look()

    def blocks(self) -> bool:
        """Return whether too many effects are pending, those of the open transaction included."""
        commit = self._state.commit
        asked = [*(commit.draft.new_effects if commit is not None else ()), *self._engine.effects.noted]
        pending = self._look()
        if pending.number + len(asked) >= self._tools.settings.effects.pending:
            return True
        return pending.weight + weight(asked) >= self._room

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """Return whether effects that the last commit record names are done: a kill would repeat them."""
        left, named = self._look().number, len(record.effects)
        return named > 2 * left or (named > left and now - self._recorded >= _RECORD)

    def contribute(self, draft: CommitDraft) -> None:
        draft.new_effects = tuple(self._engine.effects.take())
        draft.effects = (*self._runner.unfinished(), *draft.new_effects)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._runner.submit(draft.new_effects)
        self._recorded = self._tools.clock()
        self._look()

    def finish(self, record: CommitRecord, wait: float) -> bool:
        return len(self._runner.close(wait)) != len(record.effects)

    def close(self) -> None:
        self._runner.close(0.0)

    def _look(self) -> Pending:
        """Return the pending effects; count the completed ones."""
        before, self.pending = self.pending, self._runner.pending()
        if before.number > self.pending.number:
            self._tools.metrics.inc(metrics.EFFECTS_DONE, before.number - self.pending.number)
        return self.pending


def _effect_failed(tools: Tools, effect: Effect, error: BaseException, attempt: int) -> None:
    """Count and log a failed attempt. Not a method, because the runner's thread must not keep a dropped state."""
    tools.metrics.inc(metrics.EFFECT_FAILURES)
    tools.log.warning(
        "effect_failed",
        function=effect.function,
        key=effect.key,
        attempt=attempt,
        cause=class_and_text(error)[:_TEXT],
    )
