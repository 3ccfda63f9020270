"""A store in S3 or a compatible service. Needs the package obstore: `pip install 'statehold[s3]'`.

Credentials, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, ...) or from the machine's role, as obstore reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from statehold.errors import UsageError
from statehold.snapshot.store.base import Store, Stored, StoreTrouble

#: how long a call is retried; a partition that leaves waits for it
_RETRY: Final = timedelta(seconds=20)
_REQUEST: Final = "30s"


class S3Store(Store):
    """One object per segment, each by a single PUT: S3 shows an object whole or not at all."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import S3Store as Objects
        except ImportError as error:
            raise UsageError(f"snapshot.full_store = {url!r} needs obstore: pip install 'statehold[s3]'") from error
        self._url, self._obstore = url, obstore
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self._store: Any = Objects.from_url(
            url,
            client_options={"allow_http": plain, "timeout": _REQUEST},
            retry_config={"retry_timeout": _RETRY},
        )

    def put(self, key: str, data: bytes) -> None:
        try:
            self._obstore.put(self._store, key, data, use_multipart=False)
        except Exception as error:
            raise self._trouble("written", key, error) from error

    def put_new(self, key: str, data: bytes) -> None:
        try:
            self._obstore.put(self._store, key, data, use_multipart=False, mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            super().put_new(key, data)  # of the same content, if a request was repeated
        except Exception as error:
            raise self._trouble("written", key, error) from error

    def get(self, key: str) -> bytes:
        try:
            return bytes(self._obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._trouble("read", key, error) from error
            raise
        except Exception as error:
            raise self._trouble("read", key, error) from error

    def list(self, prefix: str) -> Iterator[Stored]:
        try:
            for batch in self._obstore.list(self._store, prefix=prefix):
                for each in batch:
                    yield Stored(each["path"], each["last_modified"].timestamp())
        except Exception as error:
            raise self._trouble("listed", prefix, error) from error

    def delete(self, key: str) -> None:
        try:
            self._obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._trouble("deleted", key, error) from error

    def _trouble(self, done: str, key: str, error: Exception) -> StoreTrouble:
        why = " ".join(str(error).split())
        return StoreTrouble(f"{self._url}/{key} cannot be {done}: {type(error).__name__}: {why[:300]}")
