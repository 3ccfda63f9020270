"""What a store of fulls can do, and how a full lies in it.

`<root>/<service>.<input>/<partition>/<full's id>/<segment>`: a segment holds some megabytes of chunks, each as it
would stand in Kafka. Only the manifest is in Kafka, and it names the place. A segment is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, UsageError
from statehold.snapshot.format.partition_identity import Place

KAFKA = "kafka"


class StoreTrouble(KafkaTrouble):
    """The store did not do what was asked, for now: a full that is written is given up, a restore tries again."""


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


def elsewhere_of(settings: Settings) -> str:
    """Where to look for a full that is not where its manifest says: the store that is set, if it is one."""
    return "" if settings.snapshot.full_store == KAFKA else settings.snapshot.full_store


def split_location(location: str) -> tuple[str, str]:
    """A manifest's `store` as root and folder of the full: the folder is the last three parts."""
    root, service, partition, full = location.rsplit("/", 3)
    return root, f"{service}/{partition}/{full}"


def open_store(url: str) -> Store:
    """The store at a root such as 'file:///srv/fulls' or 's3://bucket/prefix'.

    :raises UsageError: another scheme, or the package that it needs is not installed.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        from statehold.snapshot.store.files import FileStore

        return FileStore(rest)
    if scheme == "s3" and rest:
        from statehold.snapshot.store.s3 import S3Store

        return S3Store(url)
    raise UsageError(f"snapshot.full_store: {url!r} is neither 'kafka' nor file:///... nor s3://bucket/...")
