"""The format of requests and replies: headers of an input record, and of a record of `<service>.<input>.replies`.

A request is an ordinary record of an input with an id. Its return address is text that the reply repeats. It names no
topic: a reply goes to the service's own topic of replies, and there to the partition of the request (rule W3).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import xxhash

from statehold.api.record import Message, Request
from statehold.api.values.serde import Serde
from statehold.common.decoding import UNREADABLE
from statehold.errors import NoAnswerInTime, NotAnswered, RequestConflict, RequestFailed, text_of
from statehold.messages.dead_letter import TEXT, Failure
from statehold.messages.sent import Sent

#: of a request: the id that its asker chose, and the return address, which may be left out
REQUEST_HEADER: Final = "statehold-request"
RETURN_HEADER: Final = "statehold-reply-to"
#: of a reply: the id and the return address of its request, the outcome, and the offset of the request that counts
REPLY_HEADER: Final = "statehold-reply"
OUTCOME_HEADER: Final = "statehold-outcome"
OFFSET_HEADER: Final = "statehold-offset"
#: longest id in characters, and longest return address in bytes, because the state keeps them
LONGEST_ID: Final = 200
LONGEST_ADDRESS: Final = 200
#: most bytes of a reply that reports a failure: class and text of an exception, and what became of the record
_LARGEST_PROBLEM: Final = 100_000

#: answered: the value is the answer. failed: the record has failed and had no effect. conflict: another value came
#: under this id. A failure and a conflict have a `RequestProblem` in JSON as their value.
Outcome = Literal["answered", "failed", "conflict"]


class BadRequest(ValueError):
    """The headers of a request are not valid, or its record has no key."""


class AskedRequest(msgspec.Struct, frozen=True):
    """A request: key and id, and where its reply goes."""

    request: Request
    address: bytes


class RequestNews(msgspec.Struct):
    """What one transaction did with requests."""

    #: by the values of the label of `statehold_requests_total`
    counts: dict[str, int] = {}
    #: those that were taken and have no answer, with their records' timestamps, and earlier ones that have one now
    unanswered: dict[Request, int] = {}
    ended: list[Request] = []
    #: an answer was rejected by its size, and the handler caught that: a replay accepts each size
    too_large: bool = False

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def taken(self, request: Request, timestamp: int) -> None:
        self.count("taken")
        self.unanswered[request] = timestamp

    def answered(self, request: Request) -> None:
        self.count("answered")
        if self.unanswered.pop(request, None) is None:
            self.ended.append(request)


class RequestProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request has no answer."""

    #: class and text of the exception; the class is empty for a conflict
    error: str
    text: str
    #: what became of the record, such as "dead letter"
    became: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A record of the topic of replies."""

    id: str
    address: bytes
    outcome: Outcome
    #: of the request that took effect, or that failed; -1: unknown
    offset: int
    value: bytes | None

    @property
    def problem(self) -> RequestProblem:
        """Why there is no answer. It is data from a topic that others may write to, so it may be any text."""
        try:
            if len(self.value or b"") <= _LARGEST_PROBLEM:
                return _decode_problem(self.value or b"")
        except UNREADABLE:
            pass
        return RequestProblem("", "the reply does not say why")


_decode_problem: Final = msgspec.json.Decoder(RequestProblem).decode


def is_request(message: Message) -> bool:
    return any(name == REQUEST_HEADER for name, _ in message.headers() or ())


def asked_by(message: Message) -> AskedRequest:
    """Return the request that a record with the header of one carries.

    :raises BadRequest: the id is empty, too long or no text, the return address is too long, or there is no key.
    """
    headers = dict(reversed(message.headers() or ()))  # the first one of a name counts
    given, address = headers[REQUEST_HEADER] or b"", headers.get(RETURN_HEADER) or b""
    try:
        name = given.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"header {REQUEST_HEADER}: the id is no UTF-8 text: {error}") from error
    if not 1 <= len(name) <= LONGEST_ID:
        raise BadRequest(f"header {REQUEST_HEADER}: an id has 1 to {LONGEST_ID} characters, this one has {len(name)}")
    if len(address) > LONGEST_ADDRESS:
        raise BadRequest(f"header {RETURN_HEADER}: {len(address)} bytes, more than {LONGEST_ADDRESS}")
    key: bytes | None = message.key()
    if key is None:
        raise BadRequest("a request needs a key, because its id is looked up in the partition of the key")
    return AskedRequest((key, name), address)


def headers_of(id: str, address: bytes) -> list[tuple[str, bytes]]:
    """Return the headers of a request."""
    return [(REQUEST_HEADER, id.encode()), (RETURN_HEADER, address)]


def value_hash(value: bytes | None) -> bytes:
    """Return the hash by which a request with the same id is recognised as the same request."""
    return xxhash.xxh3_128_digest((b"\0" if value is None else b"\1") + (value or b""))


def reply_of(
    topic: str, partition: int, request: Request, address: bytes, outcome: Outcome, offset: int, value: bytes | None
) -> Sent:
    """Return the record for the topic of replies."""
    key, name = request
    headers = [
        (REPLY_HEADER, name.encode()),
        (RETURN_HEADER, address),
        (OUTCOME_HEADER, outcome.encode()),
        (OFFSET_HEADER, b"%d" % offset),
    ]
    return topic, value, key, partition, None, None, 0, headers


def problem_of(failure: Failure, became: str) -> bytes:
    """Return the value of a reply to a request whose record has failed."""
    return msgspec.json.encode(RequestProblem(failure.error, failure.text[:TEXT], became))


def read_reply(message: Message) -> Reply | None:
    """Return the reply in a record; None if statehold did not write it, because others may write to the topic."""
    headers: dict[str, Any] = dict(reversed(message.headers() or ()))
    name, outcome, offset = headers.get(REPLY_HEADER), headers.get(OUTCOME_HEADER), headers.get(OFFSET_HEADER) or b"-1"
    if name is None or outcome not in _OUTCOMES or not offset.removeprefix(b"-").isdigit() or len(offset) > 19:
        return None
    address = headers.get(RETURN_HEADER) or b""
    return Reply(name.decode(errors="replace"), address, _OUTCOMES[outcome], int(offset), message.value())


_OUTCOMES: Final[dict[bytes | None, Outcome]] = {
    b"answered": "answered",
    b"failed": "failed",
    b"conflict": "conflict",
}


def answer_in(reply: Reply, serde: Serde[Any], where: dict[str, Any]) -> Any:
    """Return the answer in a reply. `where`: id and coordinates of the request, as the errors name them.

    :raises RequestFailed: :raises RequestConflict: :raises NotAnswered: the answer is of another type.
    """
    if reply.outcome == "answered":
        data: Any = reply.value
        try:
            return serde.decode(data)
        except UNREADABLE as error:
            raise NotAnswered(
                f"the answer is of another type than `reply`: {text_of(error)}. The request took effect. Next: give "
                f"`reply` the type that the handler answers with, and ask again with the same value, key and "
                f"id={reply.id!r}",
                **where,
            ) from error
    problem = reply.problem
    if reply.outcome == "conflict":
        raise RequestConflict(
            f"id {reply.id!r}: {problem.text}. The request had no effect. Next: choose another id for another request",
            **where,
        )
    failed = RequestFailed(
        f"the handler failed with {problem.error}: {problem.text}. The request had no effect; its record: "
        f"{problem.became}. Next: `statehold dlq list`, or ask again with id={reply.id!r} once the cause is fixed",
        **where,
    )
    failed.error, failed.text, failed.became = problem.error, problem.text, problem.became
    raise failed


def no_answer(seconds: float, where: dict[str, Any], cause: str = "") -> NoAnswerInTime:
    """Return the error of a request that got no reply within its time."""
    return NoAnswerInTime(
        f"no answer within {seconds:.3g} s{f': {cause}' if cause else ''}. The request may take effect, or have taken "
        f"it. Next: ask again with the same value, key and id={where['id']!r}, which takes effect once",
        **where,
    )
