"""The declaration of reference data, with what a handler may call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from statehold.api.declaration import Declaration
from statehold.api.values import serde
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_KEYS: Final[Mapping[Any, Any]] = {str: bytes.decode, bytes: bytes, int: int}


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """What a `Reference` declares."""

    topic: str
    key_type: Any
    value_type: Any
    decode_key: Callable[[bytes], Any]
    decode: Callable[[bytes], Any]


class Reference(Declaration, Generic[K, V]):
    """Declares reference data of a `Handler`: the newest value of each key of a compacted topic. Read-only.

        prices = Reference("prices", key=str, value=Price)

        def on_record(self, record):
            price = self.prices.get(record.value.symbol)

    `key` is str (UTF-8), int (decimal digits) or bytes; `value` is a type or serde as for an output. Partitions share
    values, so use immutable types. A transaction reads one version, which its commit record stores. Use it on the
    partition's thread only. See docs/how-to/write/reference-data.md.

    :raises UsageError: the key type is not supported.
    """

    @overload
    def __init__(self, topic: str, *, key: type[K], value: type[V] | serde.Serde[V]) -> None: ...

    @overload
    def __init__(self, topic: str, *, key: TypeForm[K], value: TypeForm[V]) -> None: ...

    def __init__(self, topic: str, *, key: Any, value: Any) -> None:
        if key not in _KEYS:
            raise UsageError(f"Reference({topic!r}): key must be str, int or bytes")
        self._options = ReferenceOptions(topic, key, value, _KEYS[key], serde.for_messages(value, topic).decode)

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V | D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`. :raises ValueError: the topic's value cannot be decoded."""
        raise self._unbound()

    def __getitem__(self, key: K) -> V:
        """Return the value of a key. :raises KeyError: it is absent."""
        raise self._unbound()

    def __contains__(self, key: object) -> bool:
        """Return whether the key exists."""
        raise self._unbound()

    def __len__(self) -> int:
        """Return the number of keys."""
        raise self._unbound()

    def __iter__(self) -> Iterator[K]:
        """Iterate over every key, in no particular order."""
        raise self._unbound()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over every key and value, in no particular order."""
        raise self._unbound()
