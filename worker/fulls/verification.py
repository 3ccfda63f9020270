"""Reads fulls back before anything is deleted behind them (rule C4): whole, as a restore would, and keeps nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from statehold.errors import StateholdError
from statehold.ports import Cancelled
from statehold.snapshot.format.records import CommitRecord, EntryDecoder, FullRef
from statehold.snapshot.full import FullUnusable, load
from statehold.snapshot.restore.throttled_reader import ThrottledReader
from statehold.snapshot.state import State
from statehold.table import Changes
from statehold.worker.common.context import Tools

#: rest after each slice, in multiples of its processor time: twice, because nothing waits for a verification
_REST = 2.0
_NOTHING = Changes("", [], [])


class ReadBack:
    """Some fulls, read on a thread of their own. `sound`, `unsound` and `trouble` may be looked at once it is done."""

    def __init__(self, tools: Tools, refs: Sequence[FullRef], mark: CommitRecord) -> None:
        self._tools, self._refs, self._mark = tools, refs, mark
        self._closed = threading.Event()
        self.sound: list[FullRef] = []
        #: what is none, and why; never counted as kept again
        self.unsound: dict[FullRef, str] = {}
        #: why it could not be told now; a later try may
        self.trouble = ""
        self._reading = tools.aside(self._run, f"readback-{tools.place.partition}")

    def done(self, wait: float = 0.0) -> bool:
        """Whether it has ended; waits for that at most `wait` seconds."""
        return self._reading.ended(wait)

    def close(self) -> None:
        """It ends by itself soon; nobody waits for it."""
        self._closed.set()

    def _run(self) -> None:
        try:
            self._read()
        except Cancelled:
            self.trouble = "the partition is leaving"
        except StateholdError as error:
            self.trouble = str(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not pass for a proof, nor be lost
            self.trouble = f"{type(error).__name__}: {error}"

    def _read(self) -> None:
        reader = self._tools.reader(self._closed.is_set)
        slowly = ThrottledReader(reader, self._closed, rest=_REST)
        try:
            for ref in self._refs:
                try:
                    load(
                        slowly,
                        self._tools.place,
                        ref,
                        self._mark,
                        _Nowhere([]),
                        _Unopened({}),
                    )
                    self.sound.append(ref)
                except FullUnusable as finding:
                    self.unsound[ref] = str(finding)
        finally:
            reader.close()


class _Nowhere(State):
    """Keeps nothing of what is loaded."""

    def load(self, changes: Changes) -> None:
        pass


class _Unopened(EntryDecoder):
    """The checksum of an entry is verified by now, and that is enough."""

    def decode(self, raw: msgspec.Raw) -> Changes:
        return _NOTHING
