"""The declaration of a set of seen keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from statehold.api.declaration import Declaration
from statehold.api.table import milliseconds, require_name
from statehold.api.values.table_types import require_key_type, require_ordered_key
from statehold.errors import UsageError

K = TypeVar("K")


@dataclass(slots=True)
class DedupeOptions:
    """What a `Dedupe` declares."""

    key_type: Any
    #: milliseconds
    ttl: int
    most: int
    #: the attribute
    name: str = ""
    #: the name under which it is stored, if it is another one
    was: str = ""


class Dedupe(Declaration, Generic[K]):
    """Declares a set of keys that a `Handler` has seen, kept for `ttl` (seconds, or a timedelta).

        posts = Dedupe(key=str, ttl=timedelta(hours=24))

        def on_record(self, record):
            if self.posts.seen(record.value.post_id):
                return

    It is part of the state and uses the partition's own time. `most` limits the number of keys: beyond it, the key that
    would expire first is dropped early. `was`: see `Table`.

    :raises UsageError: the key has no order, `ttl` is 0, or `most` is negative.
    """

    def __init__(self, *, key: type[K], ttl: float | timedelta, most: int = 0, was: str = "") -> None:
        require_name(was)
        require_key_type(key)
        require_ordered_key(key)
        span = milliseconds(ttl)
        if not span or most < 0:
            raise UsageError("Dedupe: ttl must be above 0, and most a number of keys")
        self._options = DedupeOptions(key, span, most, was=was)

    def __set_name__(self, owner: type, name: str) -> None:
        self._options.name = name

    def seen(self, key: K) -> bool:
        """Return whether this key came within the last `ttl`. If not, keep it from now on."""
        raise self._unbound()
