"""Records that are tried later: what stands on a retry topic, `<service>.<input>.retry.<seconds>`.

Such a record is the one that was received, with headers of ours behind its own, as a letter is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from statehold.messages.dead_letter import (
    TEXT,
    Failure,
    LetterMessage,
    Request,
    as_received,
    own_headers,
    received,
    told_headers,
)
from statehold.output import Sent
from statehold.record import Message

#: begins every header that it has beside those of the record
PREFIX: Final = "statehold-retry-"


class Retried(NamedTuple):
    """A record of a retry topic: the record that it was, and what was tried."""

    #: where it stands on the retry topic
    at: int
    message: LetterMessage
    #: the newest one
    failure: Failure
    #: which of its policy's delays this was, from 0
    level: int
    #: milliseconds since 1970
    due: int

    @classmethod
    def by(cls, message: Message, input: str) -> Retried | None:
        """None for a record that is not ours."""
        headers = message.headers() or ()
        told = told_headers(PREFIX, headers)
        if not {"topic", "offset", "timestamp", "error", "text", "attempts", "level", "due"} <= told.keys():
            return None
        offset, time = int(told["offset"]), int(told["timestamp"])
        kept = received(PREFIX, headers)
        request = Request(offset, time, message.key(), message.value(), kept, False, -1)
        was = LetterMessage(input, message.partition() or 0, request)
        failure = Failure(told["error"], told["text"], int(told["attempts"]))
        return cls(message.offset() or 0, was, failure, int(told["level"]), int(told["due"]))


def retried(topic: str, message: Message, failure: Failure, level: int, due: int) -> Sent:
    """The record on a retry topic: due in milliseconds since 1970, its coordinates those of the input."""
    own = own_headers(
        PREFIX,
        topic=message.topic(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        error=failure.error,
        text=failure.text[:TEXT],
        attempts=failure.attempts,
        level=level,
        due=due,
    )
    return as_received(topic, message, own)
