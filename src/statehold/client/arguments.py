"""Checks what a caller gives a `Client`, before anything is sent or read."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from statehold.api.values.difference import brief
from statehold.errors import UsageError
from statehold.messages.request import LONGEST_ID

#: most seconds of a call: the waits of Kafka's client and of sockets end at 24 days
_LONGEST: Final = 7 * 86_400.0


def ends_at(timeout: Any) -> float:
    """Return the monotonic time at which a call that begins now is over.

    :raises UsageError: it is no number of seconds, is negative, or longer than a week.
    """
    seconds = _seconds(timeout)
    if not 0 <= seconds <= _LONGEST:
        raise UsageError(
            f"timeout={brief(timeout)}: give the seconds after which the call ends, from 0 to {_LONGEST:.0f} (a week). "
            f"Nothing was sent or read"
        )
    return time.monotonic() + seconds


def checked_age(max_age: Any) -> float:
    """Return the highest age of a standby replica in seconds; 0: the owner only.

    :raises UsageError: it is no number of seconds, or is negative.
    """
    seconds = _seconds(max_age)
    if not seconds >= 0:
        raise UsageError(
            f"max_age={brief(max_age)}: give the seconds that a standby replica may be old, or 0 to read from the "
            f"owner only. Nothing was read"
        )
    return seconds


def checked_in_flight(most: Any) -> int:
    """:raises UsageError: it is no number of requests that a client may have."""
    if not isinstance(most, int) or most < 1:
        raise UsageError(f"in_flight={brief(most)}: give the most requests without an answer, 1 or more")
    return most


def _seconds(given: Any) -> float:
    try:
        return float(given) if hasattr(given, "__float__") else math.nan  # without it: text, None, a timedelta
    except (TypeError, ValueError, OverflowError):
        return math.nan


def checked_id(id: str) -> str:
    """:raises UsageError: it is no id; the service would reject the record."""
    if not isinstance(id, str):
        raise UsageError(f"id={id!r:.100}: an id is text. Nothing was sent. Next: id={str(id)!r:.100}")
    if len(id) > LONGEST_ID:
        raise UsageError(f"id={id!r:.100}: {len(id)} characters, an id has at most {LONGEST_ID}. Nothing was sent")
    try:
        id.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"id={id!r:.100}: no UTF-8 text: {error}. Nothing was sent") from error
    return id


def no_receipt(after: Any) -> UsageError:
    """Return the error of what is given as `after` and is no receipt, such as its text."""
    return UsageError(
        f"after={brief(after)}: give what `send` or `ask_with_receipt` has returned. Nothing was read. Next: "
        f"Receipt.of(TEXT) makes one of its text"
    )
