"""An output topic of a handler: what is sent becomes visible with the commit of its record, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast import serde
from holdfast.errors import UsageError

V = TypeVar("V")

Headers = Sequence[tuple[str, bytes]]
Partitioner = Callable[[bytes | None, int], int]
#: (topic, value, key, partition, headers, timestamp in ms); partition -1 = the producer's partitioner, timestamp 0 =
#: now
Sent = tuple[str, bytes | None, str | bytes | None, int, Headers | None, int]


class Output(Generic[V]):
    """Declares an output topic of a `Handler`, and sends to it once a partition has started.

    `partitioner(key, partitions)` returns a partition; without one the key decides as Java producers do
    (murmur2_random). Partition and timestamp may also be given with each value.
    """

    def __init__(self, topic: str, *, value: type[V] | serde.Serde[V], partitioner: Partitioner | None = None) -> None:
        self.topic = topic
        self.value_type: Any = value
        self.partitioner = partitioner
        self._encode = serde.for_messages(value).encode
        self._append: Callable[[Sent], None] = _unbound
        self._partitions = 0
        self.muted = False

    def bind(self, append: Callable[[Sent], None], partitions: int = 0) -> Output[V]:
        """This output for one partition; what is sent goes to `append`."""
        bound = Output(self.topic, value=self.value_type, partitioner=self.partitioner)
        bound._append, bound._partitions = append, partitions
        return bound

    def send(
        self,
        value: V,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        """Send with the record's transaction. `timestamp` is in milliseconds since 1970; suppressed in a replay."""
        if self.muted:
            return
        if partition < 0 and self.partitioner is not None:
            partition = self.partitioner(key.encode() if isinstance(key, str) else key, self._partitions)
        self._append((self.topic, self._encode(value), key, partition, headers, timestamp))


def _unbound(_: Sent) -> None:
    raise UsageError("this Output is a declaration: use it as self.<name> in a handler that a service or Driver runs")
