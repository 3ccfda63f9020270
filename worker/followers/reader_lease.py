"""The reader of a thread that follows topics for as long as the service runs."""

from __future__ import annotations

from collections.abc import Callable

from statehold.ports import FollowingReader


class OwnReader:
    """Made when it is needed, dropped after trouble, and made anew once the login has changed.

    Used by one thread; `renew` may be called by any.
    """

    def __init__(self, make: Callable[[], FollowingReader]) -> None:
        self._make = make
        self._reader: FollowingReader | None = None
        self._old_login = False

    def renew(self) -> None:
        """The login has changed: go on with a new client."""
        self._old_login = True

    def get(self) -> FollowingReader:
        if self._old_login:
            self._old_login = False
            self.drop()
        if self._reader is None:
            self._reader = self._make()
        return self._reader

    def drop(self) -> None:
        """The next `get` makes a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
