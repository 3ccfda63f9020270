"""Read full snapshots completely, as a restore would, before anything behind them is deleted (rule C4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from statehold.errors import StateholdError, class_and_text
from statehold.ports import Cancelled
from statehold.snapshot.format.records import CommitRecord, EntryDecoder, FullRef
from statehold.snapshot.full import FullDiffers, FullUnusable, load
from statehold.snapshot.restore.throttled_reader import ThrottledReader
from statehold.snapshot.shared_chunks import KnownChunks
from statehold.state.partition_table import Changes
from statehold.state.state import State
from statehold.worker.common.context import Tools

#: rest after each slice, in multiples of its processor time: twice, because nothing waits for a verification
_REST = 2.0
_NOTHING = Changes("", [], [])


class Verification:
    """Reads full snapshots on a separate thread. Read `sound`, `unsound` and `trouble` once it is done."""

    def __init__(
        self, tools: Tools, refs: Sequence[FullRef], record: CommitRecord, known: Mapping[int, KnownChunks]
    ) -> None:
        """`known`: by family, full snapshots that were read before; the chunks that others share are not read again."""
        self._tools, self._refs, self._record, self._known = tools, refs, record, known
        self._closed = tools.threads.event()
        self.sound: list[FullRef] = []
        #: by family, the chunks of those that share some
        self.chunks: dict[int, KnownChunks] = {}
        #: unusable full snapshots with reasons; excluded from retention
        self.unsound: dict[FullRef, str] = {}
        #: those whose contents are not those of their commit record
        self.differs: set[FullRef] = set()
        #: why the verification could not finish; a later one may
        self.trouble = ""
        self._reading = tools.run_background(self._run, f"readback-{tools.place.partition}")

    def done(self, wait: float = 0.0) -> bool:
        """Return whether it has ended; wait at most `wait` seconds."""
        return self._reading.ended(wait)

    def close(self) -> None:
        """Ask it to end; do not wait."""
        self._closed.set()

    def _run(self) -> None:
        try:
            self._read()
        except Cancelled:
            self.trouble = "the partition is leaving"
        except StateholdError as error:
            self.trouble = str(error)
        except Exception as error:  # noqa: BLE001 - a bug must not count as a proof, nor be lost
            self.trouble = class_and_text(error)

    def _read(self) -> None:
        reader = self._tools.reader(self._closed.is_set)
        slowly = ThrottledReader(reader, self._closed, self._tools.threads.processor_time, rest=_REST)
        try:
            for ref in self._refs:
                try:
                    manifest = load(
                        slowly,
                        self._tools.place,
                        ref,
                        self._record,
                        _Nowhere([]),
                        _Unopened({}),
                        after=self._known.get(ref.low),
                    )
                    self.sound.append(ref)
                    self.chunks[ref.low] = KnownChunks(manifest, ref.offset)
                except FullUnusable as finding:
                    self.unsound[ref] = str(finding)
                    if isinstance(finding, FullDiffers):
                        self.differs.add(ref)
        finally:
            reader.close()


class _Nowhere(State):
    """A state that keeps no entries."""

    def load(self, changes: Changes) -> None:
        pass


class _Unopened(EntryDecoder):
    """Decodes no entry, because the checksum is verified before."""

    def decode(self, raw: msgspec.Raw) -> Changes:
        return _NOTHING
