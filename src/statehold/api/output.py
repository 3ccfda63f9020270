"""The declarations of an output topic, of records by another key, and of replies to requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from statehold.api.declaration import Declaration, WithDefaults
from statehold.api.record import Record, Request
from statehold.api.table import Table, milliseconds
from statehold.api.values import serde
from statehold.api.values.keys import KeySerde, OfKeys, key_serde
from statehold.common.class_body import require_parameters
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as DefaultTypeVar

K = TypeVar("K")
if TYPE_CHECKING:
    OutputKey = DefaultTypeVar("OutputKey", default=str | bytes | None)
else:  # before Python 3.13 only typing_extensions has defaults
    OutputKey = TypeVar("OutputKey")
V = TypeVar("V")

Headers = Sequence[tuple[str, bytes]]
Partitioner = Callable[[bytes | None, int], int]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What an `Output` declares."""

    topic: str
    value_type: Any
    serde: serde.Serde[Any]
    partitioner: Partitioner | None
    #: None: text or bytes, as they are given
    key: KeySerde | None = None


class Output(WithDefaults, Declaration, Generic[V, OutputKey]):
    """Declares an output topic of a `Handler`, which sends with `self.<name>.send`.

    `value` is a type or a serde. `key` is that of the keys, as for `on`; without it they are text or bytes.
    `partitioner(key, partitions)` returns a partition for the bytes of a key; the default is murmur2_random, as in Java
    producers. Use it on the partition's thread only.

    :raises UsageError: the type of the value or the key is not supported, or the partitioner takes other arguments.
    """

    @overload
    def __init__(
        self: Output[V, str | bytes | None],
        topic: str,
        *,
        value: type[V] | serde.Serde[V],
        key: None = None,
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Output[V, str | bytes | None],
        topic: str,
        *,
        value: TypeForm[V],
        key: None = None,
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: type[V] | serde.Serde[V],
        key: type[OutputKey] | serde.Serde[OutputKey],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: TypeForm[V],
        key: type[OutputKey] | serde.Serde[OutputKey],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: type[V] | serde.Serde[V],
        key: TypeForm[OutputKey],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: TypeForm[V],
        key: TypeForm[OutputKey],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    def __init__(self, topic: str, *, value: Any, key: Any = None, partitioner: Partitioner | None = None) -> None:
        if partitioner is not None:
            require_parameters(partitioner, f"Output({topic!r}): the partitioner", ("key", "partitions"))
        keys = None if key is None else key_serde(f"Output({topic!r})", key, topic)
        self._options = OutputOptions(topic, value, serde.for_messages(value, topic), partitioner, keys)

    @overload
    def send(
        self,
        value: V,
        key: OutputKey,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None: ...

    @overload
    def send(
        self: Output[V, K | None],
        value: V,
        key: None = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None: ...

    def send(
        self,
        value: V,
        key: Any = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        """Send a value in the record's transaction; ignored in a replay.

        `key` may be left out unless a type without None is declared for it. `partition` -1 uses the partitioner.
        `timestamp` is in milliseconds since 1970, 0 means now. Raises the errors of the serde, and UsageError outside a
        running handler, or for a key that is missing or of another type than declared.
        """
        raise self._unbound()

    @overload
    def send_all(self, values: Iterable[V], keys: Iterable[OutputKey]) -> None: ...

    @overload
    def send_all(self: Output[V, K | None], values: Iterable[V]) -> None: ...

    def send_all(self, values: Iterable[V], keys: Iterable[Any] = repeat(None)) -> None:
        """Send values with their keys; faster than one `send` per value, for example in `on_batch`."""
        raise self._unbound()


@dataclass(frozen=True, slots=True)
class RekeyOptions:
    """What a `Rekey` declares."""

    name: str
    key: KeySerde
    #: the output of its topic, whose name follows from the service's
    output: Output[Any]

    @property
    def value_type(self) -> Any:
        return self.output._options.value_type


class Rekey(Declaration, Generic[K, V]):
    """Declares records that a `Handler` sends to itself by another key: to the partition that owns that key.

        by_account = Rekey("by_account", key=str, value=Movement)

        @on("transfers", value=Transfer)
        def transfer(self, record: Record[Transfer]) -> None:
            self.by_account.send(Movement(record.value.amount), key=record.value.account)

        @on(by_account)
        def move(self, record: Record[Movement, str]) -> None: ...

    The topic `<service>.<name>.rekey` has them. They are committed with the record that sends them, and handled once.
    `key` is a type or serde as for `on`, without None, and `value` as for an output. `partitioner` is that of an
    `Output`: the keys of a further input have to follow the same one to meet these records. See
    docs/how-to/write/rekey.md.

    :raises UsageError: the name or the type of the key is not supported, or the partitioner takes other arguments.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        key: type[K] | serde.Serde[K],
        value: type[V] | serde.Serde[V],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        key: type[K] | serde.Serde[K],
        value: TypeForm[V],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        key: TypeForm[K],
        value: type[V] | serde.Serde[V],
        partitioner: Partitioner | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self, name: str, *, key: TypeForm[K], value: TypeForm[V], partitioner: Partitioner | None = None
    ) -> None: ...

    def __init__(self, name: str, *, key: Any, value: Any, partitioner: Partitioner | None = None) -> None:
        given: object = name
        if not isinstance(given, str) or not _NAME.match(given):
            raise UsageError(f"Rekey({name!r}): use letters, digits, '_' and '-' for its name, a part of its topic's")
        if key is None:
            raise UsageError(f"Rekey({name!r}): the type of its keys is missing. Next: key=str, or another type")
        if serde.of_topic(value) is not None or isinstance(serde.bare(serde.without_none(key)), OfKeys):
            raise UsageError(
                f"Rekey({name!r}): its topic is this service's own, so no schema registry has its schema. Next: "
                f"declare it with the classes of keys and values"
            )
        keys = key_serde(f"Rekey({name!r})", key)
        if keys.nullable:
            raise UsageError(
                f"Rekey({name!r}): a record without a key goes to any partition, and a replay would send it to another "
                f"one. Next: key={keys.name}, and choose a key of your own for what has none"
            )
        output = Output[Any](rekey_suffix(name), value=value, partitioner=partitioner)
        self._options = RekeyOptions(name, keys, output)

    def send(self, value: V, key: K, headers: Headers | None = None, timestamp: int = 0) -> None:
        """Send a value to the partition of a key, in the record's transaction; ignored in a replay.

        `timestamp` is in milliseconds since 1970, 0 means that of the record being handled.

        :raises UsageError: the key or the value has another type than declared, or no record is being handled.
        :raises RekeyLoop: the record has come by more than `rekey.max_hops` of these sends.
        """
        raise self._unbound()

    def key(self, record: Record[Any, Any]) -> K:
        """Return the key of one of its records, as `record.key` has it. :raises ValueError: it is of another type."""
        raise self._unbound()


def rekey_suffix(name: str) -> str:
    """Return what follows the group in the name of the topic: `Names.full` puts the group before it."""
    return f".{name}.rekey"


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
