"""What a store of fulls can do, and how a full lies in it.

`<root>/<service>.<input>/<partition>/<full's id>/<segment>`: a segment holds some megabytes of chunks, each as it
would stand in Kafka. Only the manifest is in Kafka, and it names the place. A segment is there whole or not at all.
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
    """The store did not do what was asked, for now: a full that is written is given up, a restore tries again."""


class SegmentGone(Exception):
    """The store answers and does not have the segment."""


class UnsafeLocation(SegmentGone):
    """A record names a place that is in no configured store. Nothing was read from there."""


class Stored(NamedTuple):
    key: str
    #: seconds since 1970, by the store's clock
    time: float


class Store(Protocol):
    """Keys are relative to the root, with '/' between their parts. Any thread; every call may block for long.

    Every method raises StoreTrouble for anything but what it says.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write an object; it becomes visible as a whole, and is durable on return."""
        ...

    def get(self, key: str) -> bytes:
        """:raises FileNotFoundError: there is none."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """The objects below a folder; what is half written is not among them, or looks like any other file."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; it is fine when there is none."""
        ...


def folder_of(place: Place) -> str:
    """Where the fulls of a partition lie, under the root."""
    return folder(place.names, place.partition)


def folder(names: Names, partition: int) -> str:
    """As `folder_of`."""
    return f"{names.group}.{names.input}/{partition}"


def segment_key(folder: str, number: int) -> str:
    return f"{folder}/{number:06}"


def root_of(settings: Settings) -> str:
    """Return the root of the store that takes new fulls; '' for Kafka."""
    return "" if settings.snapshot.full_store == KAFKA else settings.snapshot.full_store


def roots_of(settings: Settings) -> tuple[str, ...]:
    """Return the roots of all stores that fulls may be read from, the one for new fulls first."""
    return tuple(filter(None, (root_of(settings), *settings.snapshot.former_stores.split())))


def split_location(location: str) -> tuple[str, str]:
    """Split a manifest's `store` into the root and the full's folder, which is the last three parts.

    :raises UnsafeLocation: a part could lead out of the root.
    """
    root, *parts = location.rsplit("/", 3)
    folder = "/".join(parts)
    if len(parts) != _FOLDER_PARTS or not is_safe_key(folder):
        raise UnsafeLocation(f"its manifest names the store {location[:_SHOWN]!r}, which is no location of a full")
    return root, folder


def is_safe_key(key: str) -> bool:
    """Return whether a key stays below its root: plain names between '/', no '..', not absolute."""
    return all(_PLAIN.fullmatch(part) and part.strip(".") for part in key.split("/"))
