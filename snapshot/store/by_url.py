"""Opens the store at a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehold.errors import UsageError
from statehold.snapshot.store.base import Store
from statehold.snapshot.store.files import FileStore
from statehold.snapshot.store.s3 import S3Store

#: by URL: what returns the store there instead, in a simulation
REPLACED: Final[dict[str, Callable[[], Store]]] = {}


def open_store(url: str) -> Store:
    """Open the store at a root such as 'file:///srv/fulls' or 's3://bucket/prefix'.

    :raises UsageError: the scheme is unknown, or the package that it needs is not installed.
    """
    if url in REPLACED:
        return REPLACED[url]()
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return FileStore(rest)
    if scheme == "s3" and rest:
        return S3Store(url)
    raise UsageError(f"snapshot.full_store: {url!r} is neither 'kafka' nor file:///... nor s3://bucket/...")
