"""Reads the chunks of a full from its store, some segments ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from holdfast.snapshot.blocks import blocks
from holdfast.snapshot.records import Manifest
from holdfast.snapshot.store.base import Store, open_store, segment_key, split_location

#: segments that are asked for before they are needed
_AHEAD: Final = 3


class SegmentGone(Exception):
    """The store answers, and does not have it."""


def stored_frames(manifest: Manifest, elsewhere: str = "") -> Iterator[bytes]:
    """The chunks of a full that is not in Kafka, in order.

    `elsewhere` is the root to look at when the place that the manifest names does not have it: it was moved.

    :raises SegmentGone: a segment is in neither. :raises StoreTrouble: the store does not answer.
    :raises frame.BadFrame: a segment is damaged.
    """
    root, folder = split_location(manifest.store)
    stores = [open_store(root)]
    if elsewhere and elsewhere.rstrip("/") != root:
        stores.append(open_store(elsewhere))
    pool = ThreadPoolExecutor(_AHEAD, "fetch")
    try:
        keys = [segment_key(folder, number) for number in range(manifest.segments)]
        coming: deque[Future[bytes]] = deque(pool.submit(_get, stores, key) for key in keys[:_AHEAD])
        for number in range(len(keys)):
            data = coming.popleft().result()
            if number + _AHEAD < len(keys):
                coming.append(pool.submit(_get, stores, keys[number + _AHEAD]))
            yield from blocks(io.BytesIO(data), len(data))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _get(stores: list[Store], key: str) -> bytes:
    for store in stores:
        try:
            return store.get(key)
        except FileNotFoundError:
            continue
    raise SegmentGone(f"segment {key} is not in the store")
