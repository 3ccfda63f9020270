"""Replays the gap between a restored state and its last mark, with every side effect suppressed (rule D1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from statehold.errors import NonDeterministicReplay
from statehold.messages.pinned_command import Pinned, PinnedMessage, in_order
from statehold.ports import OutOfRange, Reader
from statehold.record import Message
from statehold.snapshot.format import digest
from statehold.snapshot.restore.progress import Progress, WatchedReader
from statehold.snapshot.restore.restore import Restored
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import retention_gap
from statehold.worker.common.signals import Signals
from statehold.worker.followers.reference import history
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed
from statehold.worker.recovery.replay_batch import commit, handle_again

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
        engine, start, mark = self._engine, self._restored.position, self._restored.mark
        end = mark.positions[self._names.input]
        replayed = 0
        if start < end or self._restored.pinned:
            engine.mute(replaying=True)
            replayed = self._replay(start, end)
            engine.mute(replaying=False)
        if digest.to_bytes(engine.state.digest) != mark.digest:
            code = f" ({mark.writer.code})" if mark.writer.code else ""
            raise NonDeterministicReplay(
                f"replaying {start} to {end} gave digest {digest.show(engine.state.digest)}, the last commit record "
                f"has {digest.show(mark.digest)}: the handler depends on more than its records and tables. Nothing was "
                f"changed. Next: run the code that wrote the commit record{code}, and `statehold retry "
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
        reader, count = WatchedReader(self._tools.reader(self._leaving), progress, _BATCH), 0
        try:
            self._use_old_references(reader)
            batches = reader.read(self._names.input, self._partition, start, end)
            for piece in in_order(batches, self._restored.pinned):
                if isinstance(piece, Pinned):
                    engine.obey(PinnedMessage(self._names.control, self._partition, piece))
                    commit(engine)
                else:
                    self._handle(piece)
                    count += len(piece)
        except HandlingFailed as poison:
            raise poison.error from poison
        except OutOfRange as error:
            raise retention_gap(self._tools.place, start, str(error)) from error
        finally:
            progress.leave()
            reader.close()
        engine.renew()
        return count

    def _use_old_references(self, reader: Reader) -> None:
        """Use the reference data that the gap's records saw: one version, because a new version comes with a delta."""
        for reference in self._engine.references.values():
            version = self._restored.mark.reference.get(reference.topic, reference.version)
            if version != reference.version:
                reference.go_back(history(reader, reference, version), version)

    def _handle(self, batch: Sequence[Message]) -> None:
        handle_again(self._engine, batch, self._signals)

    def _leaving(self) -> bool:
        """Return whether to stop reading. The reader asks often, so this also logs the progress while no data comes."""
        self._progress.tick()
        return self._signals.leaving()
