"""Replays the gap between a restored state and its last mark, with every side effect suppressed (rule D1).

`handle_again` also serves a tool that continues from an older state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from statehold.api.record import Message
from statehold.bound.policies import policy_of
from statehold.errors import NonDeterministicReplay
from statehold.messages.pinned_command import Pinned, PinnedMessage, TimeLimit, in_order
from statehold.ports import Cancelled, OutOfRange, Reader
from statehold.snapshot.restore.progress import Progress, WatchedReader
from statehold.snapshot.restore.restore import Restored
from statehold.state import digest
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import retention_gap
from statehold.worker.common.signals import Signals
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.event_time import require_segments
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed
from statehold.worker.inputs.recorded_order import RecordedOrder
from statehold.worker.replicas.reference import history

#: records handled at once; few enough that a slow handler shows progress
_BATCH: Final = 500


class GapReplay:
    """Used once, by the partition's thread; ends with Cancelled soon after the partition is revoked or lost."""

    def __init__(self, tools: Tools, signals: Signals, progress: Progress, engine: Engine, restored: Restored) -> None:
        self._tools, self._signals, self._progress = tools, signals, progress
        self._names, self._partition = tools.place.names, tools.place.partition
        #: holds the restored state
        self._engine, self._restored = engine, restored

    def run(self) -> int:
        """Replay the gap and compare the digest. Return the number of records.

        :raises NonDeterministicReplay: the previous owner recorded another state.
        :raises RecordError: the handler failed on a record that it had handled before.
        :raises RetentionGap: a record is gone.
        """
        engine, start, commit_record = self._engine, self._restored.position, self._restored.commit_record
        end = commit_record.position(self._names.input)
        replayed = 0
        if start < end or self._restored.pinned:
            advice = (
                'run that release with snapshot.delta_interval = "commit" until it has committed a record, then this '
                "one: after that a takeover repeats nothing"
            )
            require_segments(engine.event_time, commit_record, self._names.input, advice)
            engine.mute(replaying=True)
            replayed = self._replay(start, end)
            engine.mute(replaying=False)
        if digest.to_bytes(engine.state.digest) != commit_record.digest:
            code = f" ({commit_record.writer.code})" if commit_record.writer.code else ""
            raise NonDeterministicReplay(
                f"replaying {start} to {end} gave digest {digest.show(engine.state.digest)}, the last commit record "
                f"has {digest.show(commit_record.digest)}: the handler depends on more than its records and tables. "
                f"Nothing was changed. Next: run the code that wrote the commit record{code}, and `statehold retry "
                f'{self._partition}`; from then on set snapshot.delta_interval = "commit", which needs no replay',
                topic=self._names.input,
                partition=self._partition,
                position=start,
            )
        return replayed

    def _replay(self, start: int, end: int) -> int:
        engine, progress = self._engine, self._progress
        progress.watch(engine.state)
        progress.enter("replay", start, end)
        readers = [WatchedReader(self._tools.reader(self._leaving), progress, _BATCH) for _ in self._names.inputs]
        count = 0
        try:
            self._use_old_references(readers[0])
            for piece in in_order(self._batches(readers, start, end), self._restored.pinned):
                if isinstance(piece, Pinned):
                    engine.obey(PinnedMessage(self._names.control, self._partition, piece))
                    commit(engine)
                elif isinstance(piece, TimeLimit):
                    engine.limit_time(piece.time)
                else:
                    handle_again(engine, piece, self._signals)
                    count += len(piece)
        except HandlingFailed as poison:
            raise poison.error from poison
        except OutOfRange as error:
            raise retention_gap(self._tools.place, start, str(error)) from error
        finally:
            progress.leave()
            for reader in readers:
                reader.close()
        engine.renew()
        return count

    def _batches(self, readers: Sequence[Reader], start: int, end: int) -> Iterator[Sequence[Message]]:
        """Yield the records of the gap in the order in which the previous owner handled them."""
        restored = self._restored
        if not self._names.others:
            return readers[0].read(self._names.input, self._partition, start, end)
        order = RecordedOrder(readers, self._tools.place, restored.positions, restored.commit_record.positions)
        return order.batches(restored.runs)

    def _use_old_references(self, reader: Reader) -> None:
        """Use the reference data that the gap's records saw: one version, because a new version comes with a delta."""
        for reference in self._engine.references.values():
            version = self._restored.commit_record.reference.get(reference.topic, reference.version)
            if version != reference.version:
                reference.go_back(history(reader, reference, version), version)

    def _leaving(self) -> bool:
        """Return whether to stop reading. The reader asks often, so this also logs the progress while no data comes."""
        self._progress.tick()
        return self._signals.leaving()


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
        self._attempts = self._attempts + 1 if poison.at == self._at else 1
        self._at = poison.at
        if policy is None or self._attempts > policy.retries:
            return False
        if self._signals.pause(policy.backoff(self._attempts)) and self._signals.leaving():
            raise Cancelled
        return True
