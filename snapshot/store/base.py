"""The interface of a store of full snapshots, and the location of a full snapshot in it.

`<root>/<service>.<input>/<partition>/<full's id>/<segment>`: a segment holds some megabytes of chunks, with the bytes
that they have in Kafka. Only the manifest is in Kafka, and it names the location. A segment is written whole or not at
all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.snapshot.format.partition_identity import Place

KAFKA = "kafka"
_FOLDER_PARTS: Final = 3
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
#: characters of a location from a record that an error shows
_SHOWN: Final = 300


class StoreTrouble(KafkaTrouble):
    """A call of the store failed: the worker abandons the full snapshot that it writes, a restore retries."""


class SegmentGone(Exception):
    """The segment does not exist in the store."""


class UnsafeLocation(SegmentGone):
    """A record names a place that is in no configured store. Nothing was read from there."""


class Stored(NamedTuple):
    key: str
    #: seconds since 1970, by the store's clock
    time: float


class Store(Protocol):
    """Keys are relative to the root, with '/' between their parts. Any thread; every call may block for long.

    Every method raises StoreTrouble for all failures but those that it names.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write an object. It becomes visible as a whole, and is durable on return."""
        ...

    def put_new(self, key: str, data: bytes) -> None:
        """As `put`, but never replace an object of another content: two writers of one name cannot both succeed.

        :raises StoreTrouble: it exists.
        """
        try:
            held = self.get(key)
        except FileNotFoundError:
            self.put(key, data)
            return
        if held != data:
            raise StoreTrouble(f"{key} exists already, with another content: another process has written it")

    def get(self, key: str) -> bytes:
        """:raises FileNotFoundError: the object does not exist."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """Yield the objects below a folder. An unfinished write is left out, or is listed as a file of another name."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        ...


def folder_of(place: Place) -> str:
    """Return the folder of a partition's full snapshots, under the root."""
    return folder(place.names, place.partition)


def folder(names: Names, partition: int) -> str:
    """As `folder_of`."""
    return f"{names.group}.{names.input}/{partition}"


def segment_key(folder: str, number: int) -> str:
    return f"{folder}/{number:06}"


def root_of(settings: Settings) -> str:
    """Return the root of the store that takes new full snapshots; '' for Kafka."""
    return "" if settings.snapshot.full_store == KAFKA else settings.snapshot.full_store


def roots_of(settings: Settings) -> tuple[str, ...]:
    """Return the roots of all stores that full snapshots may be read from, the one for new full snapshots first."""
    return tuple(filter(None, (root_of(settings), *settings.snapshot.former_stores.split())))


def split_location(location: str) -> tuple[str, str]:
    """Split a manifest's `store` into the root and the full snapshot's folder, which is the last three parts.

    :raises UnsafeLocation: a part could lead out of the root.
    """
    root, *parts = location.rsplit("/", 3)
    folder = "/".join(parts)
    if len(parts) != _FOLDER_PARTS or not is_safe_key(folder):
        raise UnsafeLocation(
            f"its manifest names the store {location[:_SHOWN]!r}, which is not the location of a full snapshot"
        )
    return root, folder


def is_safe_key(key: str) -> bool:
    """Return whether a key stays below its root: plain names between '/', no '..', not absolute."""
    return all(_PLAIN.fullmatch(part) and part.strip(".") for part in key.split("/"))
