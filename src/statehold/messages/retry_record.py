"""The format of a retry topic, `<service>.<input>.retry.<seconds>`.

A retry record is the record as it was received, with headers of statehold behind its own, like a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from statehold.api.record import MergedMessage, Message
from statehold.messages.dead_letter import (
    TEXT,
    DeadLetterRequest,
    Failure,
    as_received,
    facts_of,
    is_of,
    number,
    own_headers,
    received,
    redriven,
)
from statehold.messages.sent import Sent

#: prefix of every header that statehold adds to the record's own
PREFIX: Final = "statehold-retry-"


class Retried(NamedTuple):
    """A record of a retry topic: the original record and its last failure."""

    #: offset on the retry topic
    at: int
    message: Message
    #: the newest failure
    failure: Failure
    #: index of the policy's delay, from 0
    level: int
    #: when to try again, in milliseconds since 1970
    due: int

    @classmethod
    def by(cls, message: Message, inputs: Sequence[str]) -> Retried | None:
        """Return the retry in a record; None if statehold did not write it."""
        try:
            return cls._by(message, inputs)
        except ValueError:
            return None  # because any writer of the topic can imitate a header

    @classmethod
    def _by(cls, message: Message, inputs: Sequence[str]) -> Retried | None:
        headers = message.headers() or ()
        facts = facts_of(PREFIX, headers)
        if not {"topic", "offset", "timestamp", "error", "text", "attempts", "level", "due"} <= facts.keys():
            return None
        offset, time = number(facts["offset"]), number(facts["timestamp"])
        kept, place = received(PREFIX, headers), number(facts.get("place", "-1"))
        topic = facts["topic"] if place >= 0 else ""
        request = DeadLetterRequest(
            offset, time, message.key(), message.value(), kept, False, -1, topic=topic, merged=place
        )
        if not is_of(inputs, request):
            return None
        was = redriven(inputs, message.partition() or 0, request)
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
    if isinstance(message, MergedMessage):
        own += own_headers(PREFIX, place=message.at)
    return as_received(topic, message, own)
