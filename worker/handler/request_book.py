"""Requests among the input's records: each id takes effect once, and all who ask with it get the same answer.

The state decides whether a request is handled (rule W1), so a replay, which sends no reply, decides identically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final

import msgspec

from statehold.api.output import StoredReply
from statehold.api.record import KeyedRecord, Message, Record, Request
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.messages.dead_letter import Failure
from statehold.messages.request import (
    AskedRequest,
    BadRequest,
    RequestNews,
    RequestProblem,
    asked_by,
    is_request,
    problem_of,
    value_hash,
)
from statehold.messages.sent import Sent
from statehold.state.kinds.replies import RepliesTable
from statehold.state.partition_table import PartitionTable
from statehold.worker.handler.record_failure import undecodable

_CONFLICT: Final = msgspec.json.encode(
    RequestProblem("", "another value was asked under this id and key, which keep the first one")
)
#: the part of a message that an answer may take, because a delta has it, too
_PART: Final = 4
_headers: Final = methodcaller("headers")


class OrdinaryRecord(Record[Any, Any], frozen=True, gc=False):
    """A record without a request, for a handler that answers requests: a reply to it goes nowhere."""

    def reply(self, value: Any) -> None:
        pass


class KeyedOrdinaryRecord(KeyedRecord[Any, Any], frozen=True, gc=False):
    """The same, of a handler whose keys have a declared type."""

    def reply(self, value: Any) -> None:
        pass


class RequestRecord(Record[Any, Any], frozen=True, gc=False):
    """A record that is a request."""

    replies: RepliesTable[Any]
    #: None: the headers are not valid
    asked: AskedRequest | None

    @property
    def request(self) -> Request | None:
        return self.asked.request if self.asked is not None else None

    def reply(self, value: Any) -> None:
        if self.asked is None or not self.replies.answer(self.asked.request, value):
            raise UsageError("record.reply(): the request is answered already. Next: reply once")


class KeyedRequestRecord(RequestRecord, frozen=True, gc=False):
    """The same, of a handler whose keys have a declared type."""

    key: Any


_ORDINARY: Final = frozenset({OrdinaryRecord, KeyedOrdinaryRecord})


class RequestBook:
    """The requests of one engine; used by the partition's thread."""

    def __init__(self, replies: RepliesTable[Any], names: Names | None) -> None:
        self.replies = replies
        #: the only input with requests, because askers know no other one; None: any
        self._input = None if names is None else names.input
        #: committed requests without an answer, oldest first, with their records' timestamps: those that were taken
        #: since the partition is live, because only a look at all rows would find earlier ones
        self._unanswered: dict[Request, int] = {}
        #: their number, and the timestamp of the oldest, 0 without one; any thread may read it
        self.waiting: tuple[int, int] = (0, 0)

    @property
    def kept(self) -> int:
        """Number of kept ids, as committed; some may have expired. Any thread."""
        return len(self.replies.stored)

    def close(self) -> RequestNews | None:
        """Return what the open transaction did, and begin the next one; None: nothing."""
        news, self.replies.news = self.replies.news, RequestNews()
        return news if news.counts or news.too_large else None

    def committed(self, news: RequestNews) -> None:
        """Follow a commit."""
        unanswered = self._unanswered
        for request in news.ended:
            unanswered.pop(request, None)
        for request, timestamp in news.unanswered.items():
            unanswered.pop(request, None)  # an id that was kept before: it is now the newest
            unanswered[request] = timestamp
        while unanswered and (oldest := next(iter(unanswered))) not in self.replies:  # its id is kept no more
            del unanswered[oldest]
        self.waiting = len(unanswered), next(iter(unanswered.values()), 0)

    def forget(self) -> None:
        """Follow a rollback."""
        self.replies.news = RequestNews()

    def hurry(self) -> bool:
        """Return whether a reply was sent since the last call: its asker waits for the commit."""
        sent, self.replies.sent = self.replies.sent, False
        return sent

    def records(
        self, messages: Sequence[Message], values: Iterable[Any], keys: Iterable[Any] | None = None
    ) -> list[Record[Any]]:
        """Return the records of these messages; those of requests can be answered. `keys` None: they are bytes."""
        if not any(map(_headers, messages)):  # no request, so without a look at each one
            if keys is None:
                return list(map(OrdinaryRecord, messages, values))
            return list(map(KeyedOrdinaryRecord, messages, values, keys))
        if keys is None:
            return [
                RequestRecord(message, value, self.replies, self._asked(message))
                if self._is_request(message)
                else OrdinaryRecord(message, value)
                for message, value in zip(messages, values, strict=False)
            ]
        return [
            KeyedRequestRecord(message, value, self.replies, self._asked(message), key)
            if self._is_request(message)
            else KeyedOrdinaryRecord(message, value, key)
            for message, value, key in zip(messages, values, keys, strict=False)  # those before one that is undecodable
        ]

    def calls(
        self, records: Sequence[Record[Any]], calls: Iterable[Callable[[Record[Any]], None]]
    ) -> Iterable[Callable[[Any], None]]:
        """Return what handles each record: the given call, behind the look-up of a request's id."""
        if _ORDINARY.issuperset(map(type, records)):
            return calls
        return [
            partial(self._take, call) if isinstance(record, RequestRecord) else call
            for record, call in zip(records, calls, strict=False)
        ]

    def failed(self, message: Message, failure: Failure, became: str) -> None:
        """Report to the asker that the record of a request has failed; in the transaction of that decision."""
        if not self.knows(message) and (asked := self._asked(message)) is not None:
            self.replies.send(asked, "failed", message.offset() or 0, problem_of(failure, became))
            self._count("failed")

    def knows(self, message: Message) -> bool:
        """Return whether the id of a request is kept; then its asker has its reply, and the handler is not needed."""
        if (asked := self._asked(message)) is None:
            return False
        row = self.replies.get(asked.request)
        if row is not None:
            self._repeat(asked, row, value_hash(message.value()))
        return row is not None

    def _take(self, call: Callable[[Record[Any]], None], record: RequestRecord) -> None:
        """Handle a request whose id is not kept; answer any other from the state, without the handler."""
        asked, replies, message = record.asked, self.replies, record.message
        if asked is None:
            self._reject(message)
            return
        row, hashed = replies.get(asked.request), value_hash(message.value())
        if row is None:
            replies.keep(asked.request, StoredReply(hashed, record.offset, waiting=(asked.address,)))
            if not replies.muted:
                replies.news.taken(asked.request, record.timestamp)
            call(record)
        else:
            self._repeat(asked, row, hashed)

    def _repeat(self, asked: AskedRequest, row: StoredReply, hashed: bytes) -> None:
        """Answer a request whose id is kept, or let it wait for the answer."""
        if row.asked != hashed:
            self._count("conflict")
            self.replies.send(asked, "conflict", row.offset, _CONFLICT)
        elif row.answered:
            self._count("repeated")
            self.replies.send(asked, "answered", row.offset, row.answer)
        else:
            self._count("joined")
            self.replies.wait(asked, row)

    def _count(self, what: str) -> None:
        if not self.replies.muted:
            self.replies.news.count(what)

    def _is_request(self, message: Message) -> bool:
        return is_request(message) and (self._input is None or message.topic() == self._input)

    def _asked(self, message: Message) -> AskedRequest | None:
        """Return the request in a record; None without one, or if its headers are not valid."""
        try:
            return asked_by(message) if self._is_request(message) else None
        except BadRequest:
            return None  # the record's own turn raises it

    def _reject(self, message: Message) -> None:
        """:raises HandlingFailed: the headers are not valid."""
        try:
            asked_by(message)
        except BadRequest as error:
            raise undecodable(message, error) from error


def request_book(
    tables: dict[str, PartitionTable[Any, Any]],
    names: Names | None,
    partition: int,
    outputs: list[Sent],
    message_bytes: int,
) -> RequestBook | None:
    """Return None for a handler that declares no `Replies`."""
    replies = next((table for table in tables.values() if isinstance(table, RepliesTable)), None)
    if replies is None:
        return None
    topic = names.replies if names is not None else "replies"
    replies.follow_outputs(outputs, topic, partition, message_bytes // _PART)
    return RequestBook(replies, names)
