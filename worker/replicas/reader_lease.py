"""Owns the reader of a thread that follows topics while the service runs."""

from __future__ import annotations

from collections.abc import Callable

from statehold.ports import FollowingReader


class OwnReader:
    """Creates a reader on demand, drops it after an error, and replaces it after a change of the login.

    One thread uses it; any thread may call `renew`.
    """

    def __init__(self, make: Callable[[], FollowingReader]) -> None:
        self._make = make
        self._reader: FollowingReader | None = None
        self._old_login = False

    def renew(self) -> None:
        """Continue with a new client, because the login has changed."""
        self._old_login = True

    def get(self) -> FollowingReader:
        if self._old_login:
            self._old_login = False
            self.drop()
        if self._reader is None:
            self._reader = self._make()
        return self._reader

    def drop(self) -> None:
        """Close the reader; the next `get` creates a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
