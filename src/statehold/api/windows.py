"""The declarations of windows of event time, with what a handler may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from statehold.api.declaration import Declaration
from statehold.api.record import Record
from statehold.api.table import Table, milliseconds
from statehold.api.values import serde, versioned_values
from statehold.api.values.table_types import require_key_type, require_ordered_key
from statehold.common.class_body import require_parameters
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class WindowOptions:
    """What windows declare besides their table; in milliseconds."""

    grace: int
    size: int = 0
    every: int = 0
    gap: int = 0
    merge: Callable[[Any, Any], Any] | None = None


class Windows(Table[tuple[K, int, int], V], Generic[K, V]):
    """The base of all windows: a table of open windows by (key, start, end), in milliseconds since 1970.

    A window includes its start and excludes its end. It closes when the partition's time reaches end + grace: its row
    is deleted, and `Handler.on_window` gets it. The end is part of the key, so a window that is open keeps it when you
    change the declaration.
    """

    _windows: WindowOptions

    @overload
    def __init__(
        self,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        key: TypeForm[K],
        value: TypeForm[V],
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    def __init__(
        self,
        *,
        key: Any,
        value: Any,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None:
        require_key_type(key)
        require_ordered_key(key)
        row_key: Any = GenericAlias(tuple, (key, int, int))
        super().__init__(
            key=row_key,
            value=value,
            mutable=mutable,
            version=version,
            upcasters=upcasters,
            was=was,
            storage=storage,
        )

    def update(self, record: Record[Any, Any], key: K, fn: Callable[[V | None], V]) -> None:
        """Set each window of this key and the record's timestamp to `fn(value)`; a new window begins with None.

        If one of them has closed, `Handler.on_late` is called, once, after the update of the others.

        :raises UsageError: `fn` returned None.
        """
        raise self._unbound()

    def at(self, record: Record[Any, Any], key: K) -> list[tuple[int, int, V]]:
        """Return the open windows that `update` would change, earliest first: (start, end, value)."""
        raise self._unbound()

    def put(self, key: tuple[K, int, int], value: V) -> None:
        """Replace a window's value, as `windows[key] = value` does. :raises UsageError: the window has closed."""
        raise self._unbound()

    def delete(self, key: tuple[K, int, int]) -> None:
        """Remove a window; `Handler.on_window` does not get it."""
        raise self._unbound()


class Hopping(Windows[K, V]):
    """Declares windows of `size` that begin `every` so often, from 1970-01-01 UTC on (seconds, or timedeltas).

    A record falls into size / every windows. See `Tumbling`.
    """

    @overload
    def __init__(
        self,
        size: float | timedelta,
        every: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        size: float | timedelta,
        every: float | timedelta,
        *,
        key: TypeForm[K],
        value: TypeForm[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        size: float | timedelta,
        every: float | timedelta,
        *,
        key: Any,
        value: Any,
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        long, hop = span(self, "size", size, least=1), span(self, "every", every, least=1)
        self._windows = WindowOptions(span(self, "grace", grace, least=0), size=long, every=hop)
        if hop > long:
            raise UsageError(
                f"{type(self).__name__}(every={every!r}): it is longer than the size {size!r}, so records between two "
                f"windows would be lost"
            )
        super().__init__(key=key, value=value, **options)


class Tumbling(Hopping[K, V]):
    """Declares windows of `size` (seconds, or a timedelta), one after the other, from 1970-01-01 UTC on.

        candles = Tumbling(timedelta(minutes=1), grace=timedelta(seconds=5), key=str, value=Candle)

        def on_record(self, record):
            self.candles.update(record, record.value.symbol, lambda candle: with_trade(candle, record.value))

        def on_window(self, name, key, start, end, value):
            self.closed.send(value, key=key)

    `grace` is how long a window stays open for late records. `key` has an order: str, int, bytes or a tuple of them.
    `value`, `version`, `upcasters`, `mutable` and `storage` are as for a `Table`.
    """

    @overload
    def __init__(
        self,
        size: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        size: float | timedelta,
        *,
        key: TypeForm[K],
        value: TypeForm[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        size: float | timedelta,
        *,
        key: Any,
        value: Any,
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        super().__init__(size, size, key=key, value=value, grace=grace, **options)


class Session(Windows[K, V]):
    """Declares windows that end when no record has come for `gap` (seconds, or a timedelta); see `Tumbling`.

    A session is from its first record to `gap` after its last one. `merge(earlier, later)` combines the values of two
    sessions when a record bridges them. Sessions are sorted by key, then by start.
    """

    @overload
    def __init__(
        self,
        gap: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        merge: Callable[[V, V], V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        gap: float | timedelta,
        *,
        key: TypeForm[K],
        value: TypeForm[V],
        merge: Callable[[V, V], V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        gap: float | timedelta,
        *,
        key: Any,
        value: Any,
        merge: Callable[[V, V], V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        quiet = span(self, "gap", gap, least=1)
        require_parameters(merge, f"{type(self).__name__}: merge", ("earlier", "later"))
        self._windows = WindowOptions(span(self, "grace", grace, least=0), gap=quiet, merge=merge)
        super().__init__(key=key, value=value, **options)


def window_options(declaration: Windows[Any, Any]) -> WindowOptions:
    return declaration._windows


def span(declaration: Declaration, what: str, given: float | timedelta, *, least: int) -> int:
    """Return milliseconds. :raises UsageError: they are below `least`."""
    found = milliseconds(given)
    if found < least:
        raise UsageError(f"{type(declaration).__name__}({what}={given!r}): it must be at least {least} milliseconds")
    return found
