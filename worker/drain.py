"""Drain a live partition: commit the processed records before the deadline."""

from __future__ import annotations

from statehold.worker.common.context import Tools
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.signals import Signals
from statehold.worker.loop import LiveLoop


class Drain:
    """Used once, by the partition's thread."""

    def __init__(self, tools: Tools, signals: Signals, live: LiveLoop) -> None:
        self._tools, self._signals, self._live = tools, signals, live
        self._transaction = live.transaction

    def run(self) -> Event:
        """Drain; LOST: the partition was lost, or the deadline passed, before the processed records were committed.

        :raises PartitionError: :raises ProducerDropped:
        """
        if not self._committed():
            return Event.LOST
        self._tools.log.info("drained", position=self._transaction.kafka.position, n=self._live.record.n)
        return Event.DRAINED

    def _committed(self) -> bool:
        """Commit the processed records; before a stop also take a full snapshot, if the settings say so."""
        transaction, buffer = self._transaction, self._transaction.buffer
        while self._in_time():
            self._live.pipeline.settle()
            # Handle rolled-back records again; the next owner handles the records after them.
            while transaction.position < transaction.reached and self._in_time():
                messages = buffer.next(transaction.policy.room())
                if messages is None:
                    break
                self._live.pipeline.handle(messages)
                if buffer.alone and transaction.policy.due(self._tools.clock()):
                    break  # what is due before its record may take longer than the deadline, so it commits in parts
            if transaction.policy.since is None:
                break
            self._live.pipeline.commit()
            if transaction.kafka.position >= transaction.reached:  # nothing was rolled back
                break
        if self._signals.lost():
            return False
        if self._signals.final:
            self._final_full()
        stop_wait = self._tools.settings.effects.stop_wait
        wait = max(0.0, min(stop_wait, self._signals.deadline - self._tools.clock()))
        if self._live.participants.finish(self._live.record, wait):
            self._commit_record()
            self._live.full_snapshots.settle(self._live.record, self._signals.deadline)
        failing = buffer.failure is not None and buffer.reached(transaction.position)
        return not self._live.uncommitted or (transaction.policy.since is None and failing)

    def _in_time(self) -> bool:
        return self._tools.clock() < self._signals.deadline and not self._signals.lost()

    def _final_full(self) -> None:
        """Ask for the bounds, then commit, then snapshot, because the bounds must precede the commit's header (S5)."""
        bounds = self._live.full_snapshots.final_bounds(self._signals.deadline)
        if bounds is not None and self._commit_record():
            self._live.full_snapshots.final(self._live.record, bounds, self._signals.deadline)

    def _commit_record(self) -> bool:
        """Commit one more record; retry until the deadline if a rebalance rejects it, because others leave, too."""
        before = self._live.record.n
        while self._live.record.n == before:
            if not self._in_time():
                return False
            self._live.pipeline.commit()
        return True
