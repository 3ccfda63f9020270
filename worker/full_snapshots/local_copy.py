"""Copies each full snapshot that a live partition writes to its local disk."""

from __future__ import annotations

from statehold.ports import FullSink
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import FullRef
from statehold.snapshot.restore.local_cache import LocalFullSnapshots, LocalWriter

#: seconds that a closing partition waits for the disk; the next restore downloads what is missing
_PATIENCE = 5.0


class LocalCopy:
    """Copies chunks on their way from the writer to the sink."""

    def __init__(self, local: LocalFullSnapshots) -> None:
        self._local = local
        self._writer: LocalWriter | None = None
        self._manifest = b""

    def through(self, sink: FullSink, after: FullRef | None = None) -> FullSink:
        """Return a sink for a new full snapshot that also copies it; it has all chunks of the one at `after`."""
        self.drop()
        self._writer = self._local.begin(after)
        return _Tee(sink, self)

    def add(self, payload: bytes) -> None:
        if frame.kind_of(payload) == b"F":
            self._manifest = payload
        elif self._writer is not None:
            self._writer.add(payload)

    def keep(self, ref: FullRef) -> None:
        """Keep the copy, because a commit record refers to the snapshot now."""
        if self._writer is not None:
            self._writer.keep(self._manifest, ref)

    def drop(self) -> None:
        """Drop the copy of an abandoned full snapshot."""
        if self._writer is not None:
            self._writer.drop()

    def close(self) -> None:
        """Wait briefly until kept copies reach the disk."""
        self.drop()
        if self._writer is not None:
            self._writer.wait(_PATIENCE)


class _Tee:
    """`ports.FullSink` that copies what it passes on."""

    def __init__(self, sink: FullSink, local_copy: LocalCopy) -> None:
        self._sink, self._local_copy = sink, local_copy
        self.open, self.seal, self.acknowledged, self.close = sink.open, sink.seal, sink.acknowledged, sink.close

    @property
    def crowded(self) -> bool:
        return self._sink.crowded

    def send(self, payload: bytes) -> None:
        self._local_copy.add(payload)
        self._sink.send(payload)
