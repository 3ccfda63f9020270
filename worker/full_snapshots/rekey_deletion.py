"""Delete the records of a `Rekey` that every kept full snapshot of their partition covers, on a separate thread.

Never others (rule H5): a restore begins with one of these snapshots and handles what follows its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from statehold.common.threads import CallInProgress
from statehold.snapshot.format.records import FullRef, Manifest, unpack
from statehold.worker.common.context import Tools

#: seconds that a closing partition waits for a running deletion
_PATIENCE = 2.0


class RekeyDeletion:
    """Used by the partition's thread; only `close` waits."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._topics = tools.place.names.rekeys if tools.settings.rekey.keep == "snapshots" else ()
        self._closed = tools.threads.event()
        self._running: CallInProgress | None = None

    def begin(self, kept: Sequence[FullRef]) -> None:
        """Start to delete behind these full snapshots, which were read completely, unless a deletion runs."""
        if self._topics and self.ended():
            self._running = self._tools.run_background(
                partial(self._run, kept), f"rekeyed-{self._tools.place.partition}"
            )

    def ended(self) -> bool:
        """Return whether no deletion runs."""
        if self._running is not None and self._running.ended(0.0):
            self._running = None
        return self._running is None

    def close(self) -> None:
        """Wait briefly, as for the orphans of a store."""
        if self._running is not None:
            self._running.ended(_PATIENCE)
        self._closed.set()

    def _run(self, kept: Sequence[FullRef]) -> None:
        tools, place = self._tools, self._tools.place
        try:
            manifests = self._manifests(kept)
            before = {topic: min(each.positions.get(topic, 0) for each in manifests) for topic in self._topics}
            for topic, offset in before.items():
                tools.offsets.delete_records(topic, place.partition, offset)
        except Exception as error:  # noqa: BLE001 - the records remain, and the next truncation retries
            tools.log.warning("truncation_failed", cause=f"delete what was sent by another key: {error!r}")

    def _manifests(self, kept: Sequence[FullRef]) -> list[Manifest]:
        """:raises ValueError: a record is no manifest."""
        place, reader, found = self._tools.place, self._tools.reader(self._closed.is_set), list[Manifest]()
        try:
            for ref in kept:
                for batch in reader.read(place.names.snapshot, place.partition, ref.offset, ref.offset + 1):
                    found += [each for message in batch if isinstance(each := unpack(message.value()), Manifest)]
        finally:
            reader.close()
        if len(found) != len(kept):
            raise ValueError(f"{len(kept)} full snapshots are kept, {len(found)} manifests were read")
        return found
