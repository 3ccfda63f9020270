"""Reads the chunks of a full snapshot from its store, some segments ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from statehold.common.threads import Background
from statehold.ports import Cancelled
from statehold.snapshot.format.blocks import blocks
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.store.base import SegmentGone, Store, StoreTrouble, UnsafeLocation, segment_key, split_location
from statehold.snapshot.store.by_url import open_store

#: segments that are requested before they are needed
_AHEAD: Final = 3
#: seconds between two checks whether the partition leaves, and seconds after which a silent store is abandoned
_GLANCE: Final = 0.05
PATIENCE: Final = 120.0


def stored_frames(
    manifest: Manifest,
    roots: Sequence[str],
    cancelled: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE,
    *,
    first: int = 0,
) -> Iterator[bytes]:
    """Read the chunks of a full snapshot that is not in Kafka, in order, from segment number `first` on.

    Only the stores at `roots` are read, the one that the manifest names first: a store may have been moved, and a
    manifest is data from Kafka, which must not choose what this process reads.

    A call of the store that hangs stays behind on a daemon thread.

    :raises SegmentGone: a segment is in no store. :raises UnsafeLocation: the manifest names none of them.
    :raises StoreTrouble: a store does not answer within `patience` seconds. :raises Cancelled: `cancelled` has become
        true. :raises frame.BadFrame: a segment is damaged.
    """
    stores, keys = _located(manifest, roots, first)
    coming = deque(_Segment(stores, key) for key in islice(keys, _AHEAD))
    while coming:
        data = coming.popleft().take(cancelled, patience)
        coming.extend(_Segment(stores, key) for key in islice(keys, 1))
        yield from blocks(io.BytesIO(data), len(data))


def _located(manifest: Manifest, roots: Sequence[str], first: int = 0) -> tuple[list[Store], Iterator[str]]:
    """Return the stores to ask, in this order, and the keys of the full snapshot's segments from `first` on."""
    root, folder = split_location(manifest.store)
    if not roots:
        raise UnsafeLocation(
            f"its manifest names the store {root!r}, which is not configured: set snapshot.full_store, or "
            f"snapshot.former_stores for a store that takes no new full snapshots"
        )
    if manifest.segments > len(manifest.checksums):
        raise UnsafeLocation(f"its manifest names {manifest.segments} segments for {len(manifest.checksums)} chunks")
    stores = [open_store(each) for each in sorted(roots, key=lambda each: each != root)]
    return stores, (segment_key(folder, number) for number in range(first, manifest.segments))


class _Segment:
    """A segment that a background thread reads."""

    def __init__(self, stores: list[Store], key: str) -> None:
        self._key, self._data = key, b""
        self._reading = Background(partial(self._run, stores), "fetch")

    def take(self, cancelled: Callable[[], bool], patience: float) -> bytes:
        for _ in range(max(1, round(patience / _GLANCE))):
            if self._reading.ended(_GLANCE):
                self._reading.wait()
                return self._data
            if cancelled():
                raise Cancelled
        raise StoreTrouble(f"segment {self._key} did not arrive within {patience:.0f} s")

    def _run(self, stores: list[Store]) -> None:
        self._data = _get(stores, self._key)


def segments_of(manifest: Manifest, roots: Sequence[str], first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Read each segment of a full snapshot as it is, from number `first` on: its key under the root and its content.

    :raises SegmentGone, UnsafeLocation, StoreTrouble: as `stored_frames`.
    """
    stores, keys = _located(manifest, roots, first)
    for key in keys:
        yield key, _get(stores, key)


def _get(stores: list[Store], key: str) -> bytes:
    trouble: StoreTrouble | None = None
    for store in stores:
        try:
            return store.get(key)
        except FileNotFoundError:
            continue
        except StoreTrouble as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    raise SegmentGone(f"segment {key} is not in the store; snapshot.full_store and former_stores say where to look")
