"""The declaration of an output topic, with what a handler may call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statehold.api.declaration import Declaration
from statehold.api.values import serde
from statehold.common.class_body import require_parameters

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
