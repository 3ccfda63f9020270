"""The declaration of a join of two streams, with what a handler may call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

import msgspec

from statehold.api.record import Record
from statehold.api.table import Table
from statehold.api.values import serde, versioned_values
from statehold.api.values.table_types import require_key_type, require_ordered_key
from statehold.api.windows import span
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")
#: key, side, timestamp, number among the records of that key, side and timestamp
Row = tuple[K, str, int, int]

LEFT: Final = "left"
RIGHT: Final = "right"
#: the sides whose unmatched records the handler gets, by kind of join
REPORTED: Final[Mapping[str, tuple[str, ...]]] = {"inner": (), "left": (LEFT,), "outer": (LEFT, RIGHT)}


class BufferedRecord(msgspec.Struct, Generic[L, R], frozen=True, omit_defaults=True, gc=False):
    """The value of a row: a record of one side."""

    left: L | None = None
    right: R | None = None
    #: whether `on_unmatched` gets it if no partner comes
    waiting: bool = False


@dataclasses.dataclass(slots=True)
class JoinOptions:
    """What a `JoinBuffer` declares besides its table; times in milliseconds."""

    join: str
    within: int
    grace: int
    #: the class of each side's values; None if it is not checked
    classes: Mapping[str, type | None]


class JoinBuffer(Table[Row[K], BufferedRecord[L, R]], Generic[K, L, R]):
    """Declares a join of two streams by key and time; times are seconds, or timedeltas.

        pairs = JoinBuffer(timedelta(days=2), key=str, left=Payment, right=Invoice, join="outer")

        def on_record(self, record):
            match record.value:
                case Payment() as payment:
                    for invoice in self.pairs.left(record, payment.reference):
                        self.paid.send(Paid(payment, invoice))
                case Invoice() as invoice:
                    for payment in self.pairs.right(record, invoice.reference):
                        self.paid.send(Paid(payment, invoice))

        def on_unmatched(self, name, key, side, value, timestamp):
            self.open.send(value, key=key)

    Two records of a key are partners if their timestamps differ by at most `within`. A record waits for partners until
    the partition's time is later than its timestamp + within + grace. A record of the left side that had none by then
    goes to `Handler.on_unmatched` once, if `join` is "left" or "outer"; one of the right side, if it is "outer".

    `key` has an order: str, int, bytes or a tuple of them. `left` and `right` are the types of the values. `version`,
    `upcasters`, `mutable` and `storage` are as for a `Table` of `BufferedRecord[left, right]` by (key, side, timestamp,
    number), sorted by that key.
    """

    _join_options: JoinOptions

    @overload
    def __init__(
        self,
        within: float | timedelta,
        *,
        key: type[K],
        left: type[L],
        right: type[R],
        join: Literal["inner", "left", "outer"] = "inner",
        grace: float | timedelta = 0,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        within: float | timedelta,
        *,
        key: TypeForm[K],
        left: TypeForm[L],
        right: TypeForm[R],
        join: Literal["inner", "left", "outer"] = "inner",
        grace: float | timedelta = 0,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    def __init__(
        self,
        within: float | timedelta,
        *,
        key: Any,
        left: Any,
        right: Any,
        join: Literal["inner", "left", "outer"] = "inner",
        grace: float | timedelta = 0,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None:
        if join not in REPORTED:
            raise UsageError(f"JoinBuffer(join={join!r}): it is one of {', '.join(REPORTED)}")
        require_key_type(key)
        require_ordered_key(key)
        self._join_options = JoinOptions(
            join,
            span(self, "within", within, least=1),
            span(self, "grace", grace, least=0),
            {LEFT: _class_of(LEFT, left), RIGHT: _class_of(RIGHT, right)},
        )
        row_key: Any = GenericAlias(tuple, (key, str, int, int))
        value: Any = BufferedRecord[left, right]
        super().__init__(
            key=row_key,
            value=value,
            mutable=mutable,
            version=version,
            upcasters=upcasters,
            was=was,
            storage=storage,
        )

    def left(self, record: Record[Any, Any], key: K, value: L | None = None) -> list[R]:
        """Keep a record of the left side, and return its partners of the right side: oldest first, then by arrival.

        `value` is what to keep of it, by default the record's value. A record whose time is over finds no partner and
        is not kept: `Handler.on_late` gets it.

        :raises UsageError: the value is None or belongs to the other side.
        """
        raise self._unbound()

    def right(self, record: Record[Any, Any], key: K, value: R | None = None) -> list[L]:
        """Do the same as `left` for a record of the right side."""
        raise self._unbound()

    def put(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        """Write a row, as `left` and `right` do. :raises UsageError: its time is over."""
        raise self._unbound()

    def delete(self, key: Row[K]) -> None:
        """Remove a row: it joins no later record, and `Handler.on_unmatched` does not get it."""
        raise self._unbound()


def join_options(declaration: JoinBuffer[Any, Any, Any]) -> JoinOptions:
    return declaration._join_options


def _class_of(side: str, kind: Any) -> type | None:
    """Return the class that values of this side have; None if it is not to be checked.

    :raises UsageError: a serde was given.
    """
    if not isinstance(kind, type):
        if isinstance(kind, serde.Serde):
            raise UsageError(
                f"JoinBuffer({side}={type(kind).__name__}(...)): a row has the values of both sides, so no serde of "
                f"one fits. Next: give the type, such as a msgspec.Struct"
            )
        return None
    return kind if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) else None
