"""The copy of each full that a live partition writes, for its own local disk."""

from __future__ import annotations

from statehold.ports import FullSink
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import FullRef
from statehold.snapshot.restore.local_cache import LocalFulls, LocalWriter

#: how long the end of a partition waits for the disk; what is not there then is downloaded by the next restore
_PATIENCE = 5.0


class Copying:
    """Between a full's writer and its sink; without a local directory it is not there at all."""

    def __init__(self, local: LocalFulls | None) -> None:
        self._local = local
        self._writer: LocalWriter | None = None
        self._manifest = b""

    def through(self, sink: FullSink) -> FullSink:
        """The sink of a new full, which is copied as it passes."""
        if self._local is None:
            return sink
        self.drop()
        self._writer = self._local.begin()
        return _Tee(sink, self)

    def add(self, payload: bytes) -> None:
        if frame.kind_of(payload) == b"F":
            self._manifest = payload
        elif self._writer is not None:
            self._writer.add(payload)

    def keep(self, ref: FullRef) -> None:
        """A mark refers to it now: the next restore will want it."""
        if self._writer is not None:
            self._writer.keep(self._manifest, ref)

    def drop(self) -> None:
        """The full was given up."""
        if self._writer is not None:
            self._writer.drop()

    def close(self) -> None:
        """The partition ends: what is kept gets a moment to reach the disk."""
        self.drop()
        if self._writer is not None:
            self._writer.wait(_PATIENCE)


class _Tee:
    """`ports.FullSink`."""

    def __init__(self, sink: FullSink, copying: Copying) -> None:
        self._sink, self._copying = sink, copying

    def open(self, full: str) -> str:
        return self._sink.open(full)

    @property
    def crowded(self) -> bool:
        return self._sink.crowded

    def seal(self) -> int:
        return self._sink.seal()

    def send(self, payload: bytes) -> None:
        self._copying.add(payload)
        self._sink.send(payload)

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return self._sink.acknowledged(wait)

    def close(self) -> None:
        self._sink.close()
