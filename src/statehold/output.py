"""Output topics: an output record becomes visible when its input record commits, or never."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

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

    def __init__(self, topic: str, *, value: type[V] | serde.Serde[V], partitioner: Partitioner | None = None) -> None:
        self.topic = topic
        self.value_type: Any = value
        self.partitioner = partitioner
        self._encode = serde.for_messages(value, topic).encode
        self._append: Callable[[Sent], None] = _unbound
        self._extend: Callable[[Iterable[Sent]], None] = _unbound
        self._partitions = 0
        self.muted = False

    def bind(self, sent: list[Sent], partitions: int = 0) -> Output[V]:
        """Return the output of one partition, which appends its records to `sent`."""
        bound = Output(self.topic, value=self.value_type, partitioner=self.partitioner)
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
        nothing: Iterable[None] = repeat(None)
        self._extend(
            zip(repeat(self.topic), map(self._encode, values), keys, repeat(-1), nothing, nothing, repeat(0), nothing)
        )


def _unbound(_: object) -> None:
    raise UsageError("this Output is a declaration: use it as self.<name> in a handler that a service or Driver runs")


def with_origin(outputs: Sequence[Sent], partition: int, n: int, first: int) -> list[Sent]:
    """Return the outputs, each with its origin after its other headers: input partition, transaction, ordinal."""
    origins = map(ORIGIN.pack, repeat(partition), repeat(n), range(first, first + len(outputs)))
    return [
        (topic, value, key, to, None, None, at, [*(headers or ()), (ORIGIN_HEADER, origin)])
        for (topic, value, key, to, _, _, at, headers), origin in zip(outputs, origins, strict=True)
    ]
