"""The requests of a partition that are kept, with their answers: a table whose rows only the engine writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from statehold.api.output import Replies, StoredReply, reply_type
from statehold.api.record import Request
from statehold.api.values import serde
from statehold.api.values.difference import brief
from statehold.api.values.message_types import checked_types, require_type
from statehold.errors import UsageError, text_of
from statehold.messages.request import AskedRequest, Outcome, RequestNews, reply_of
from statehold.messages.sent import Sent
from statehold.state.kinds.ttl import ExpiringTable

R = TypeVar("R")

#: most return addresses that wait for one answer; a further one replaces the oldest
_MOST_WAITING: Final = 16


class RepliesTable(ExpiringTable[Request, StoredReply], Replies[R]):
    """The requests of one partition by key and id."""

    #: set for each partition
    _outputs: list[Sent]
    _topic: str
    _partition: int
    _most: int
    news: RequestNews

    def __init__(self, declaration: Replies[R]) -> None:
        super().__init__(declaration)
        self.reply_type, serde_of_replies = reply_type(declaration)
        self._types = checked_types(self.reply_type)
        self._encode = serde_of_replies.encode
        #: None: the registry's own serde checks values
        self._decode: Callable[[Any], Any] | None = serde_of_replies.decode
        #: a replay sends nothing
        self.muted = False
        #: a reply was sent since the engine last looked
        self.sent = False

    def follow_outputs(self, outputs: list[Sent], topic: str, partition: int, most: int) -> None:
        """Send replies to this partition of the topic. `most`: most bytes of an answer."""
        self._outputs, self._topic, self._partition, self._most = outputs, topic, partition, most
        self.news = RequestNews()
        if serde.of_topic(self.reply_type) is not None:  # each partition has its own clients
            self._encode, self._decode = serde.for_messages(self.reply_type, topic).encode, None

    # For the handler

    def answer(self, request: Request, value: R) -> bool:
        row = self.get(request)
        if row is None or row.answered:
            return False
        data = self._packed_answer(value)
        self.keep(request, StoredReply(row.asked, row.offset, data, answered=True))
        for address in row.waiting:
            self.send(AskedRequest(request, address), "answered", row.offset, data)
        if not self.muted:
            self.news.answered(request)
        return True

    def __setitem__(self, key: Request, value: StoredReply) -> None:
        raise self._written_by_hand()

    def put(self, key: Request, value: StoredReply) -> None:
        raise self._written_by_hand()

    def delete(self, key: Request) -> None:
        raise self._written_by_hand()

    def _written_by_hand(self) -> UsageError:
        return UsageError(
            f"{self.attribute} holds the answers to requests. Next: record.reply(value), or "
            f"self.{self.attribute}.answer(request, value)"
        )

    def _packed_answer(self, value: R) -> bytes | None:
        """:raises UsageError: the answer is too large, or its reader would not get it as it is declared.

        The second in a replay, too, because a handler may catch that (rule M4). The first depends on the settings, so
        no replay repeats a transaction with it: it carries a delta.
        """
        if self._types is not None and type(value) not in self._types:
            require_type(self._types, value, self.attribute, "it is declared with ")
        data: bytes | None = self._encode(value)
        if self._decode is not None:
            try:
                self._decode(data)
            except Exception as error:  # a serde of the user may raise anything
                raise UsageError(
                    f"{self.attribute}: a reader of the answer {brief(value)} would fail: {text_of(error)}. Nothing "
                    f"was sent. Next: answer with a value of {self.reply_type!r:.100}, or declare Replies with another"
                ) from error
        if data is not None and len(data) > self._most and not self.muted:
            self.news.too_large = True
            raise UsageError(
                f"the answer has {len(data)} bytes, the limit is {self._most}, a quarter of kafka.message_max_bytes. "
                f"Nothing was sent. Next: answer with less, for example with a key by which the asker reads the rest"
            )
        return data

    # For the engine

    def keep(self, request: Request, row: StoredReply) -> None:
        """Write a row. It expires `keep` after this."""
        ExpiringTable.__setitem__(self, request, row)

    def wait(self, asked: AskedRequest, row: StoredReply) -> None:
        """Let one more asker wait for the answer of a request that has none yet."""
        if asked.address not in row.waiting:
            waiting = (*row.waiting, asked.address)[-_MOST_WAITING:]
            self.keep(asked.request, StoredReply(row.asked, row.offset, waiting=waiting))

    def send(self, asked: AskedRequest, outcome: Outcome, offset: int, value: bytes | None) -> None:
        """Send a reply in the open transaction."""
        if not self.muted:
            self.sent = True
            self._outputs.append(
                reply_of(self._topic, self._partition, asked.request, asked.address, outcome, offset, value)
            )
