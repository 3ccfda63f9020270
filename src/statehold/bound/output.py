"""Output topics: an output record becomes visible when its input record commits, or never."""

from __future__ import annotations

import copy
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from statehold.api.declaration import options_of
from statehold.api.output import Headers, Output, OutputOptions, Partitioner
from statehold.api.values import serde
from statehold.api.values.difference import brief
from statehold.api.values.keys import KeySerde
from statehold.api.values.message_types import checked_types, require_type
from statehold.errors import UsageError, text_of
from statehold.messages.sent import Sent

V = TypeVar("V")

#: Header of every output record if `output.origin` is on: input partition, transaction and ordinal in it, little
#: endian (rule T3).
ORIGIN_HEADER = "sh"
ORIGIN = struct.Struct("<IQI")
#: takes what is sent in a replay, and keeps nothing
_NOWHERE: Final = deque[Sent](maxlen=0)


class Origin(NamedTuple):
    """The transaction that wrote a record, the place of the record in it, and its headers without this one."""

    partition: int
    n: int
    ordinal: int
    headers: tuple[tuple[str, Any], ...]


class PartitionOutput(Output[V, Any]):
    """The output of one partition; `bind` makes it from the prototype of a declaration."""

    # Slots, because `send` reads six of them for each record: 0.07 microseconds less than from a dict.
    __slots__ = (
        "_append",
        "_choose",
        "_encode",
        "_extend",
        "_of_topic",
        "_partitions",
        "_sent",
        "_serde",
        "_types",
        "partitioner",
        "topic",
        "value_type",
    )

    def __init__(self, declaration: Output[V, Any]) -> None:
        options: OutputOptions = options_of(declaration)
        self.topic, self.value_type, self.partitioner = options.topic, options.value_type, options.partitioner
        self._serde = options.serde
        self._of_topic = serde.of_topic(self.value_type)
        self._encode = self._serde.encode
        self._types = checked_types(self.value_type)
        #: the partitioner; None in a replay, where a tool may not know the number of partitions
        self._choose: Partitioner | None = None
        self._sent: list[Sent]
        self._append: Callable[[Sent], None]
        self._extend: Callable[[Iterable[Sent]], None]
        self._partitions = 0

    def bind(self, sent: list[Sent], partitions: int = 0, *, checked: bool = False) -> PartitionOutput[V]:
        """Return the output of one partition, which appends its records to `sent`.

        `checked`: decode each value again, so that a field of a wrong type is found; for development mode.
        """
        bound = copy.copy(self)
        if self._of_topic is not None:  # each partition has its own clients
            bound._serde = serde.for_messages(self.value_type, self.topic)
            bound._encode = bound._serde.encode
        if checked and isinstance(self._serde, serde.Json | serde.Nullable | serde.Pydantic):
            bound._encode = self._encode_checked
        bound._sent, bound._append, bound._extend = sent, sent.append, sent.extend
        bound._choose, bound._partitions = self.partitioner, partitions
        return bound

    def mute(self, muted: bool) -> None:
        """Keep nothing of what is sent while `muted`.

        It is checked and encoded all the same, because a handler may catch what that raises (rule M4).
        """
        kept = _NOWHERE if muted else self._sent
        self._append, self._extend = kept.append, kept.extend
        self._choose = None if muted else self.partitioner

    def send(
        self,
        value: V,
        key: Any = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        if self._types is not None and type(value) not in self._types:
            self._require_type(value)
        if self._choose is not None and partition < 0:
            partition = self._choose(key.encode() if isinstance(key, str) else key, self._partitions)
        if headers is not None:
            headers = list(headers)
        self._append((self.topic, self._encode(value), key, partition, None, None, timestamp, headers))

    def send_all(self, values: Iterable[V], keys: Iterable[Any] = repeat(None)) -> None:
        if self._choose is not None:
            together: list[Sent] = []
            one_by_one = copy.copy(self)
            one_by_one._append = together.append
            for value, key in zip(values, keys, strict=False):
                one_by_one.send(value, key)
            self._extend(together)
            return
        if self._types is not None:
            values = list(values)
            if not self._types.issuperset(map(type, values)):
                for value in values:
                    self._require_type(value)
        nothing: Iterable[None] = repeat(None)
        together = list(
            zip(repeat(self.topic), map(self._encode, values), keys, repeat(-1), nothing, nothing, repeat(0), nothing)
        )
        self._extend(together)

    def _require_type(self, value: V) -> None:
        if self._types is not None:
            require_type(self._types, value, f"Output({self.topic!r})", "the output is declared with value=")

    def _encode_checked(self, value: V) -> bytes:
        data = self._serde.encode(value)
        try:
            self._serde.decode(data)
        except (msgspec.ValidationError, ValueError) as error:
            raise UsageError(
                f"Output({self.topic!r}): a reader of {brief(value)} would fail: {text_of(error)}"
            ) from error
        return data


class KeyedOutput(PartitionOutput[V]):
    """An output whose keys have a declared type."""

    __slots__ = ("_encode_key", "keys")

    def __init__(self, declaration: Output[V, Any], keys: KeySerde) -> None:
        super().__init__(declaration)
        self.keys = keys
        self._encode_key = keys.encode

    def bind(self, sent: list[Sent], partitions: int = 0, *, checked: bool = False) -> KeyedOutput[V]:
        bound = cast("KeyedOutput[V]", super().bind(sent, partitions, checked=checked))
        bound._encode_key = KeySerde(self.keys.type, self.topic).encode  # each partition has its own clients
        return bound

    def send(
        self, value: V, key: Any = None, headers: Headers | None = None, partition: int = -1, timestamp: int = 0
    ) -> None:
        super().send(value, self._encoded(key), headers, partition, timestamp)

    def send_all(self, values: Iterable[V], keys: Iterable[Any] = repeat(None)) -> None:
        super().send_all(values, map(self._encoded, keys) if self._choose is None else keys)

    def _encoded(self, key: Any) -> bytes | None:
        try:
            return self._encode_key(key)
        except UsageError as error:
            raise UsageError(f"Output({self.topic!r}): {error}") from error.__cause__


def partition_output(declaration: Output[V, Any]) -> PartitionOutput[V]:
    """Return the prototype of the outputs of a declaration, which `bind` copies for each partition."""
    keys: KeySerde | None = options_of(declaration).key
    return PartitionOutput(declaration) if keys is None else KeyedOutput(declaration, keys)


def with_origin(outputs: Sequence[Sent], partition: int, n: int, first: int) -> list[Sent]:
    """Return the outputs, each with its origin after its other headers: input partition, transaction, ordinal."""
    origins = map(ORIGIN.pack, repeat(partition), repeat(n), range(first, first + len(outputs)))
    return [
        (topic, value, key, to, None, None, at, [*(headers or ()), (ORIGIN_HEADER, origin)])
        for (topic, value, key, to, _, _, at, headers), origin in zip(outputs, origins, strict=True)
    ]


def origin_of(headers: Iterable[tuple[str, Any]] | None) -> Origin | None:
    """Return what the last header says that has this name and the size of an origin.

    It is the last one, because a service writes its own after those that its handler sends on. Another size is of
    another program, so it stays among the headers. None: the record names no origin.
    """
    found = tuple(headers or ())
    for i in range(len(found) - 1, -1, -1):
        name, data = found[i]
        if name == ORIGIN_HEADER and isinstance(data, bytes) and len(data) == ORIGIN.size:
            partition, n, ordinal = ORIGIN.unpack(data)
            return Origin(partition, n, ordinal, found[:i] + found[i + 1 :])
    return None
