"""What rides along with a transaction: whether it carries a delta, the fulls its mark names, the effects it owes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from statehold.common.background_call import Beside
from statehold.snapshot.format.records import Effect, Mark
from statehold.snapshot.restore.restore import Restored
from statehold.snapshot.state import Frozen
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.fulls.scheduler import Fulls
from statehold.worker.handler.effect_recorder import effect_room
from statehold.worker.handler.engine import Engine
from statehold.worker.participants.commands import Controlled, Obeyed
from statehold.worker.participants.effect_runner import Pending, Surroundings, weight
from statehold.worker.participants.retry_topics import Retries
from statehold.worker.transaction.policy import SnapshotPolicy
from statehold.worker.transaction.transaction import Closing

#: of the newest transaction in what a record is said to take
_WEIGHT = 0.1


class Flight(NamedTuple):
    """A transaction whose commit is under way, and what has to wait for its end."""

    commit: Beside
    closing: Closing
    effects: Sequence[Effect]
    records: int
    outputs: int
    #: monotonic seconds
    began: float
    #: seconds in the handler
    handling: float = 0.0
    #: timestamp of the last record, in milliseconds since 1970; 0: there is none
    newest: int = 0
    #: what it did with records that failed; None where there is no policy for them
    letters: Mapping[str, int] | None = None


class Riders:
    """Used by the partition's thread."""

    def __init__(self, tools: Tools, engine: Engine, mark: Mark, signals: Signals) -> None:
        self._tools, self._engine = tools, engine
        now = tools.clock()
        self._snapshots = SnapshotPolicy(tools.settings.snapshot, last_delta=now, last_full=now)
        self.fulls = Fulls(tools, engine.state, self._snapshots, mark, signals.leaving)
        self.controlled = Controlled(tools, engine, mark)
        self.retries = Retries(tools, engine, mark)
        self._pace, self._reference = mark.pace, mark.reference
        name, settings = f"effects-{tools.place.partition}", tools.settings.effects
        about = Surroundings(name, partial(_effect_failed, tools), settings, signals.lost)
        self._effects = tools.effects(engine.handler, about)
        #: what is owed of them, for whoever looks from another thread
        self.pending = Pending()
        #: with the first delta: the transaction from which on the deltas hold every change
        self._reach: int | None = None

    def inherit(self, restored: Restored) -> None:
        """What the restore found: what a full would save the next one, and fulls that are none (rule C4)."""
        self._snapshots.bytes, self._snapshots.entries = restored.unsaved_bytes, restored.unsaved_keys
        self._snapshots.keys = restored.state.keys
        self.fulls.cost.inherit(restored.work, restored.unsaved_bytes)
        if restored.full_time:
            self._tools.metrics.set(metrics.FULL_TIME, restored.full_time)
        self.fulls.refs = tuple(ref for ref in self.fulls.refs if ref not in restored.unusable)
        self.fulls.inherit(restored.full)
        # What the gap wrote is in the next delta, what came between the last delta and the full in none.
        if restored.full is not None and restored.mark.last_delta < restored.full.first:
            self._reach = restored.full.first
        self.fulls.truncation.sound = {restored.full} if restored.full is not None else set()

    def begin(self, mark: Mark) -> None:
        """Just before LIVE: effects that an earlier owner may not have run."""
        self._effects.submit(mark.effects)
        self._pending()

    def ask_full(self) -> None:
        """Take a full from the next commit boundary on."""
        self._snapshots.asked = True

    def burdened(self, flight: Flight | None) -> bool:
        """Too many effects are owed: no more records now."""
        noted, pending = self._engine.effects.noted, self._pending()
        if flight is not None:
            noted = [*flight.effects, *noted]
        if pending.number + len(noted) >= self._tools.settings.effects.pending:
            return True
        return pending.weight + weight(noted) >= effect_room(self._tools.settings)

    def mark_due(self, mark: Mark, now: float) -> bool:
        """A mark without records has something to say: a command, a tick, a full, or that effects are done."""
        return (
            self.controlled.waiting(mark)
            or (self.retries.waiting and self.may_retry(mark))
            or self.fulls.mark_due(now)
            or len(mark.effects) > 2 * self._pending().number
        )

    def may_retry(self, mark: Mark) -> bool:
        """Whether records of retry topics may be handled: as for the input's own."""
        return mark.paused is None and not self.burdened(None)

    def handled(self, records: int, seconds: float) -> None:
        """A transaction has handled so many records in so long: what a replay of them would take (`Mark.pace`).

        Where every commit carries a delta nothing is ever replayed, and the marks say nothing of it.
        """
        if records:
            self.controlled.ticking.handled()
        if records and self._snapshots.mode != "commit":
            newest = seconds / records * 1e9
            self._pace = round(newest if self._pace == 0 else self._pace + _WEIGHT * (newest - self._pace))

    def closing(self, position: int, frozen: Frozen, noted: Sequence[Effect], obeyed: Obeyed, now: float) -> Closing:
        """What the mark of this transaction will say."""
        letters, reference = self._engine.letters, self._engine.reference
        if (letters is not None and letters.decided) or reference != self._reference:
            self._snapshots.force_delta = True  # no replay passes a verdict, nor from one version to another
        delta = self._engine.state.delta(frozen) if self._snapshots.delta_due(now) else None
        owed = (*self._effects.owed(), *noted)
        commands = (*self._engine.take_commands(), *obeyed.commands)
        reach = self._reach if delta is not None else None
        return Closing(
            position,
            frozen,
            delta,
            self.fulls.next_refs(),
            owed,
            commands,
            reach,
            obeyed.next,
            obeyed.pinned,
            obeyed.switch,
            self._pace,
            obeyed.retries,
            reference,
        )

    def committed(self, mark: Mark, flight: Flight, increment_bytes: int) -> None:
        """The transaction is the truth: start what had to wait for it."""
        self._reference = mark.reference
        self.controlled.committed(flight.closing.control)
        self.retries.committed(flight.closing.retries)
        self._tools.speeds.expect(mark.pace)
        if flight.letters is not None:
            self._tell_letters(mark, flight.letters)
        self._effects.submit(flight.effects)
        self._pending()
        changes = flight.closing.frozen.changes
        self._snapshots.committed(
            self._tools.clock(),
            delta=mark.delta,
            # A mark alone is nothing that a full would save: an idle partition takes no further ones.
            increment_bytes=increment_bytes if changes or flight.records else 0,
            entries=sum(len(change.keys) for change in changes),
            keys=mark.keys,
        )

    def _tell_letters(self, mark: Mark, counts: Mapping[str, int]) -> None:
        letters, meters = self._engine.letters, self._tools.metrics
        assert letters is not None
        letters.passed(mark.positions)
        meters.set(metrics.PARKED_KEYS, letters.keys)
        for what, count in counts.items():
            meters.inc(metrics.FAILED_RECORDS, count, what)

    def finish(self, mark: Mark, wait: float) -> bool:
        """Before a drain ends: give effects `wait` seconds. True: a last mark has something to say."""
        return len(self._effects.close(wait)) != len(mark.effects) or self.fulls.pending

    def _pending(self) -> Pending:
        """What is owed and was submitted; counts what is done by now."""
        before, self.pending = self.pending, self._effects.pending()
        if before.number > self.pending.number:
            self._tools.metrics.inc(metrics.EFFECTS_DONE, before.number - self.pending.number)
        return self.pending

    def close(self) -> None:
        """Let go of what runs beside, each whatever another raises; nothing is committed here."""
        with ExitStack() as last_first:
            last_first.callback(self.retries.close)
            last_first.callback(self.controlled.close)
            last_first.callback(self._effects.close, 0.0)
            last_first.callback(self.fulls.close)


def _effect_failed(tools: Tools, effect: Effect, error: BaseException, attempt: int) -> None:
    """No method: the runner's thread must not keep a Live, and with it a state, that is gone."""
    tools.metrics.inc(metrics.EFFECT_FAILURES)
    tools.log.warning(
        "effect_failed",
        function=effect.function,
        key=effect.key,
        attempt=attempt,
        cause=f"{type(error).__name__}: {error}",
    )
