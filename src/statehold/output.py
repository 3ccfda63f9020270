"""Output topics: an output record becomes visible when its input record commits, or never."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from statehold import serde
from statehold.errors import UsageError

V = TypeVar("V")

#: Header of every output record if `output.origin` is on: input partition, transaction and ordinal in it, little
#: endian (rule T3).
ORIGIN_HEADER = "sh"
ORIGIN = struct.Struct("<IQI")

Headers = Sequence[tuple[str, bytes]]
Partitioner = Callable[[bytes | None, int], int]
#: Positional arguments of confluent_kafka's produce, because keywords would cost more than the rest of a send:
#: (topic, value, key, partition, None, None, timestamp in ms, headers). Partition -1 means the producer's partitioner,
#: timestamp 0 means now.
Sent = tuple[str, bytes | None, str | bytes | None, int, None, None, int, list[tuple[str, bytes]] | None]


class Output(Generic[V]):
    """Declares an output topic of a `Handler`, which sends with `self.<name>.send`.

    `value` is a type or a serde. `partitioner(key, partitions)` returns a partition; the default is murmur2_random, as
    in Java producers. Use it on the partition's thread only.
    """

    def __init__(
        self, topic: str, *, value: type[V] | UnionType | serde.Serde[V], partitioner: Partitioner | None = None
    ) -> None:
        self.topic = topic
        self.value_type: Any = value
        self.partitioner = partitioner
        self._serde: serde.Serde[Any] = serde.for_messages(value, topic)
        self._of_topic = serde.of_topic(value)
        self._encode = self._serde.encode
        self._types = _struct_types(value)
        self._append: Callable[[Sent], None] = _unbound
        self._extend: Callable[[Iterable[Sent]], None] = _unbound
        self._partitions = 0
        self.muted = False

    def bind(self, sent: list[Sent], partitions: int = 0, *, checked: bool = False) -> Output[V]:
        """Return the output of one partition, which appends its records to `sent`.

        `checked`: decode each value again, so that a field of a wrong type is found; for development mode.
        """
        bound: Output[V] = object.__new__(type(self))
        vars(bound).update(vars(self))
        if self._of_topic is not None:  # each partition has its own clients
            bound._serde = serde.for_messages(self.value_type, self.topic)
            bound._encode = bound._serde.encode
        if checked and isinstance(self._serde, serde.Json | serde.Nullable | serde.Pydantic):
            bound._encode = self._encode_checked
        bound._append, bound._extend, bound._partitions = sent.append, sent.extend, partitions
        return bound

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
        if self.muted:
            return
        if self._types is not None and type(value) not in self._types:
            self._require_type(value)
        if self.partitioner is not None and partition < 0:
            partition = self.partitioner(key.encode() if isinstance(key, str) else key, self._partitions)
        if headers is not None:
            headers = list(headers)
        self._append((self.topic, self._encode(value), key, partition, None, None, timestamp, headers))

    def send_all(self, values: Iterable[V], keys: Iterable[str | bytes | None] = repeat(None)) -> None:
        """Send values with their keys; faster than one `send` per value, for example in `on_batch`."""
        if self.muted:
            return
        if self.partitioner is not None:
            for value, key in zip(values, keys, strict=False):
                self.send(value, key)
            return
        if self._types is not None:
            values = list(values)
            if not self._types.issuperset(map(type, values)):
                for value in values:
                    self._require_type(value)
        nothing: Iterable[None] = repeat(None)
        self._extend(
            zip(repeat(self.topic), map(self._encode, values), keys, repeat(-1), nothing, nothing, repeat(0), nothing)
        )

    def _require_type(self, value: V) -> None:
        if self._types is not None and not isinstance(value, tuple(self._types)):
            wanted = " | ".join(sorted(kind.__name__ for kind in self._types))
            raise UsageError(
                f"Output({self.topic!r}): {value!r:.100} is a {type(value).__name__}, the output is declared with "
                f"value={wanted}"
            )

    def _encode_checked(self, value: V) -> bytes:
        data = self._serde.encode(value)
        try:
            self._serde.decode(data)
        except (msgspec.ValidationError, ValueError) as error:
            raise UsageError(f"Output({self.topic!r}): a reader of {value!r:.100} would fail: {error}") from error
        return data


def _struct_types(kind: Any) -> frozenset[type] | None:
    """Return the classes of a type that is a Struct, or a union of them with or without None; None for others."""
    kinds = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    if all(isinstance(each, type) and issubclass(each, (msgspec.Struct, NoneType)) for each in kinds):
        return frozenset(kinds)
    return None


def _unbound(_: object) -> None:
    raise UsageError("this Output is a declaration: use it as self.<name> in a handler that a service or Driver runs")


def with_origin(outputs: Sequence[Sent], partition: int, n: int, first: int) -> list[Sent]:
    """Return the outputs, each with its origin after its other headers: input partition, transaction, ordinal."""
    origins = map(ORIGIN.pack, repeat(partition), repeat(n), range(first, first + len(outputs)))
    return [
        (topic, value, key, to, None, None, at, [*(headers or ()), (ORIGIN_HEADER, origin)])
        for (topic, value, key, to, _, _, at, headers), origin in zip(outputs, origins, strict=True)
    ]
