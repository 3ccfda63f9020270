"""The format of a retry topic, `<service>.<input>.retry.<seconds>`.

A retry record is the record as it was received, with headers of statehold behind its own, like a dead letter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from statehold.messages.dead_letter import (
    TEXT,
    DeadLetterRequest,
    Failure,
    RedrivenMessage,
    as_received,
    facts_of,
    number,
    own_headers,
    received,
)
from statehold.output import Sent
from statehold.record import Message

#: prefix of every header that statehold adds to the record's own
PREFIX: Final = "statehold-retry-"


class Retried(NamedTuple):
    """A record of a retry topic: the original record and its last failure."""

    #: offset on the retry topic
    at: int
    message: RedrivenMessage
    #: the newest failure
    failure: Failure
    #: index of the policy's delay, from 0
    level: int
    #: when to try again, in milliseconds since 1970
    due: int

    @classmethod
    def by(cls, message: Message, input: str) -> Retried | None:
        """Return the retry in a record; None if statehold did not write it."""
        try:
            return cls._by(message, input)
        except ValueError:
            return None  # because any writer of the topic can imitate a header

    @classmethod
    def _by(cls, message: Message, input: str) -> Retried | None:
        headers = message.headers() or ()
        facts = facts_of(PREFIX, headers)
        if not {"topic", "offset", "timestamp", "error", "text", "attempts", "level", "due"} <= facts.keys():
            return None
        offset, time = number(facts["offset"]), number(facts["timestamp"])
        kept = received(PREFIX, headers)
        request = DeadLetterRequest(offset, time, message.key(), message.value(), kept, False, -1)
        was = RedrivenMessage(input, message.partition() or 0, request)
        failure = Failure(facts["error"], facts["text"], number(facts["attempts"]))
        return cls(message.offset() or 0, was, failure, number(facts["level"]), number(facts["due"]))


def retried(topic: str, message: Message, failure: Failure, level: int, due: int) -> Sent:
    """Return the record for a retry topic. `due`: milliseconds since 1970. The coordinates are those of the input."""
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
