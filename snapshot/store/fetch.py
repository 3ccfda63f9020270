"""Reads the chunks of a full from its store, some segments ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from statehold.common.background_call import Background
from statehold.ports import Cancelled
from statehold.snapshot.format.blocks import blocks
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.store.base import Store, StoreTrouble, open_store, segment_key, split_location

#: segments that are asked for before they are needed
_AHEAD: Final = 3
#: how often it is looked whether the partition leaves, and after how many seconds a silent store is given up
_GLANCE: Final = 0.05
PATIENCE: Final = 120.0


class SegmentGone(Exception):
    """The store answers, and does not have it."""


def stored_frames(
    manifest: Manifest,
    elsewhere: str = "",
    cancelled: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE,
    *,
    only: bool = False,
) -> Iterator[bytes]:
    """The chunks of a full that is not in Kafka, in order.

    `elsewhere` is the root to look at when the place that the manifest names does not have it, or is not there any
    more: it was moved. With `only` nothing else is looked at: a backup's copy.

    A call of the store that hangs is left behind on a thread that keeps no process from ending.

    :raises SegmentGone: a segment is in neither. :raises StoreTrouble: the store does not answer within `patience`
        seconds. :raises Cancelled: `cancelled` has become true. :raises frame.BadFrame: a segment is damaged.
    """
    root, folder = split_location(manifest.store)
    roots = [elsewhere] if only else [root, *([elsewhere] if elsewhere and elsewhere.rstrip("/") != root else [])]
    stores = [open_store(each) for each in roots]
    keys = [segment_key(folder, number) for number in range(manifest.segments)]
    coming = deque(_Segment(stores, key) for key in keys[:_AHEAD])
    for number in range(len(keys)):
        data = coming.popleft().take(cancelled, patience)
        if number + _AHEAD < len(keys):
            coming.append(_Segment(stores, keys[number + _AHEAD]))
        yield from blocks(io.BytesIO(data), len(data))


class _Segment:
    """One that is being read."""

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
        raise StoreTrouble(f"segment {self._key} has not come within {patience:.0f} s")

    def _run(self, stores: list[Store]) -> None:
        self._data = _get(stores, self._key)


def segments_of(manifest: Manifest, elsewhere: str = "") -> Iterator[tuple[str, bytes]]:
    """Key under the root and content of each segment of a full, as they are, one after the other.

    :raises SegmentGone, StoreTrouble: as `stored_frames`.
    """
    root, folder = split_location(manifest.store)
    stores = [open_store(each) for each in dict.fromkeys((root, elsewhere)) if each]
    for number in range(manifest.segments):
        key = segment_key(folder, number)
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
    raise SegmentGone(f"segment {key} is not in the store")
