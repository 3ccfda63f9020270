"""The declarations of an output topic and of replies to requests, with what a handler may call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from statehold.api.declaration import Declaration
from statehold.api.record import Request
from statehold.api.table import Table, milliseconds
from statehold.api.values import serde
from statehold.common.class_body import require_parameters
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

V = TypeVar("V")

Headers = Sequence[tuple[str, bytes]]
Partitioner = Callable[[bytes | None, int], int]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What an `Output` declares."""

    topic: str
    value_type: Any
    serde: serde.Serde[Any]
    partitioner: Partitioner | None


class Output(Declaration, Generic[V]):
    """Declares an output topic of a `Handler`, which sends with `self.<name>.send`.

    `value` is a type or a serde. `partitioner(key, partitions)` returns a partition; the default is murmur2_random, as
    in Java producers. Use it on the partition's thread only.

    :raises UsageError: the type of the value is not supported, or the partitioner takes other arguments.
    """

    @overload
    def __init__(
        self, topic: str, *, value: type[V] | serde.Serde[V], partitioner: Partitioner | None = None
    ) -> None: ...

    @overload
    def __init__(self, topic: str, *, value: TypeForm[V], partitioner: Partitioner | None = None) -> None: ...

    def __init__(self, topic: str, *, value: Any, partitioner: Partitioner | None = None) -> None:
        if partitioner is not None:
            require_parameters(partitioner, f"Output({topic!r}): the partitioner", ("key", "partitions"))
        self._options = OutputOptions(topic, value, serde.for_messages(value, topic), partitioner)

    def send(
        self,
        value: V,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        """Send a value in the record's transaction; ignored in a replay.

        `partition` -1 uses the partitioner. `timestamp` is in milliseconds since 1970, 0 means now. Raises the errors
        of the serde, and UsageError outside a running handler.
        """
        raise self._unbound()

    def send_all(self, values: Iterable[V], keys: Iterable[str | bytes | None] = repeat(None)) -> None:
        """Send values with their keys; faster than one `send` per value, for example in `on_batch`."""
        raise self._unbound()


class StoredReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of `Replies`: a request, and its answer once it has one."""

    #: hash of the request's value: the same id with another value is another request, which is rejected
    asked: bytes
    #: offset of the request that took effect
    offset: int
    #: the encoded answer, if `answered`
    answer: bytes | None = None
    answered: bool = False
    #: return addresses of those who wait for the answer
    waiting: tuple[bytes, ...] = ()


class Replies(Table[Request, StoredReply], Generic[V]):
    """Declares that a `Handler` answers requests, which `Client.ask` sends.

        replies = Replies(Booked, keep=timedelta(days=1))

        def on_record(self, record: Record[Payment]) -> None:
            record.reply(Booked(record.value.cents))

    An answer is in the transaction of the record, so it exists only if its effects do. The same id with the same key
    and value, from any asker, gets the stored answer within `keep` (seconds, or a timedelta) and is not handled again;
    with another value it is rejected. `keep` counts in the partition's own time, from the request, and again from an
    answer that comes later. `value` is a type or a serde, as for an `Output`.

    :raises UsageError: the type of the value is not supported, or `keep` is not positive.
    """

    @overload
    def __init__(self, value: type[V] | serde.Serde[V], *, keep: float | timedelta, was: str = "") -> None: ...

    @overload
    def __init__(self, value: TypeForm[V], *, keep: float | timedelta, was: str = "") -> None: ...

    def __init__(self, value: Any, *, keep: float | timedelta, was: str = "") -> None:
        if milliseconds(keep) <= 0:
            raise UsageError(f"Replies(keep={keep!r}): give the seconds for which an id is kept, above 0")
        super().__init__(key=Request, value=StoredReply, ttl=keep, was=was)
        self._reply_type = value
        self._reply_serde = serde.for_messages(value, REPLIES)

    def answer(self, request: Request, value: V) -> bool:
        """Answer a request later: after a timer, a durable call or a join. `request` is what `Record.request` was.

        Return False if the request is answered already, or is not kept any more.

        :raises UsageError: the value is not of the declared type, or too large.
        """
        raise self._unbound()


#: what a schema registry knows replies by
REPLIES: Final = "replies"


def reply_type(declaration: Replies[Any]) -> tuple[Any, serde.Serde[Any]]:
    """Return the declared type or serde of the answers, and the serde."""
    return declaration._reply_type, declaration._reply_serde
