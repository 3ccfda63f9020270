"""The base class of a service's logic: one object per partition, called by one thread."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    overload,
)

from statehold.api.declaration import WithDefaults, options_of
from statehold.api.failures import Policy
from statehold.api.output import Rekey, RekeyOptions, rekey_suffix
from statehold.api.record import Record
from statehold.api.timer import Timer, Timers
from statehold.api.values.keys import key_serde
from statehold.api.values.serde import Serde
from statehold.common.class_body import require_no_generator, require_parameters, require_plain
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as DefaultTypeVar

V = TypeVar("V")
if TYPE_CHECKING:
    K = DefaultTypeVar("K", default=bytes | None)
else:  # before Python 3.13 only typing_extensions has defaults
    K = TypeVar("K")
H = TypeVar("H")
P = ParamSpec("P")
#: a method of an input of these values and keys
Method = Callable[[H, Record[V, K]], None]

#: the key of a side effect outside Kafka: topic, partition, offset, index
EffectKey = tuple[str, int, int, int]
HOOKS: Final = (
    "on_record",
    "on_batch",
    "on_command",
    "on_timer",
    "on_window",
    "on_unmatched",
    "on_late",
    "on_live",
    "on_stop",
)


class InputDeclaration(NamedTuple):
    """What `on` has declared of a method."""

    #: of a `Rekey` the end of its topic's name (`rekey_suffix`)
    topic: str
    #: type of the values, or a serde
    value: Any
    #: type of the keys, or a serde; None: bytes, or no key
    key: Any = None


@overload
def on(topic: Rekey[K, V], *, value: None = None, key: None = None) -> Callable[[Method[H, V, K]], Method[H, V, K]]: ...


@overload
def on(
    topic: str, *, value: type[V] | Serde[V], key: None = None
) -> Callable[[Method[H, V, bytes | None]], Method[H, V, bytes | None]]: ...


@overload
def on(
    topic: str, *, value: TypeForm[V], key: None = None
) -> Callable[[Method[H, V, bytes | None]], Method[H, V, bytes | None]]: ...


@overload
def on(
    topic: str, *, value: type[V] | Serde[V], key: type[K] | Serde[K]
) -> Callable[[Method[H, V, K]], Method[H, V, K]]: ...


@overload
def on(topic: str, *, value: TypeForm[V], key: type[K] | Serde[K]) -> Callable[[Method[H, V, K]], Method[H, V, K]]: ...


@overload
def on(topic: str, *, value: type[V] | Serde[V], key: TypeForm[K]) -> Callable[[Method[H, V, K]], Method[H, V, K]]: ...


@overload
def on(topic: str, *, value: TypeForm[V], key: TypeForm[K]) -> Callable[[Method[H, V, K]], Method[H, V, K]]: ...


def on(
    topic: str | Rekey[Any, Any], *, value: Any = None, key: Any = None
) -> Callable[[Method[H, Any, Any]], Method[H, Any, Any]]:
    """Declare that a method of a `Handler` handles the records of one of several inputs, or those of a `Rekey`.

        @on("prices", value=Price)
        def price(self, record: Record[Price]) -> None: ...

    `value` is the type of the input's values, or a serde. `key` is that of its keys, and `record.key` has it: str
    (UTF-8), int (decimal digits), UUID (its text), bytes, a frozen Struct, dataclass or tuple as JSON, or a serde such
    as `Int64`; with `| None` for records without a key. Others are rejected, and parts of which two equal ones may
    have different bytes, such as floats (docs/how-to/write/handlers.md). A `Rekey` has declared both. A method that a
    subclass overrides keeps its declaration.

    :raises UsageError: the type of an input's values is missing, or that of its keys is not supported.
    """
    declaration = _declared(topic, value, key)

    def declare(method: Method[H, Any, Any]) -> Method[H, Any, Any]:
        require_plain(method, f"{method.__qualname__}, the method of the input {declaration.topic!r},")
        require_parameters(method, method.__qualname__, ("self", "record"))
        vars(method)[DECLARATION] = declaration
        return method

    return declare


def _declared(topic: str | Rekey[Any, Any], value: Any, key: Any) -> InputDeclaration:
    if isinstance(topic, Rekey):
        options: RekeyOptions = options_of(topic)
        return InputDeclaration(rekey_suffix(options.name), options.value_type, options.key.type)
    if value is None:
        raise UsageError(f"on({topic!r}): the type of its values is missing. Next: @on({topic!r}, value=TYPE)")
    return InputDeclaration(topic, value, None if key is None else key_serde(f"on({topic!r})", key, topic).type)


#: attribute of a method that `on` has decorated
DECLARATION: Final = "statehold_input"


class Handler(WithDefaults, Generic[V, K]):
    """The base of a service's logic; `V` is the type of the input values, and `K` of their keys, as for `on`.

    Without `K` a key is bytes, or None.

    statehold makes one instance for each partition and calls it only from that partition's thread. Keep state that must
    survive in `Table`s. Anything else on `self` is lost in a restart, and not rolled back with a record.
    """

    #: Failure policies by exception class: `retry`, `retry_later`, `dead_letter`, `park`, `stop`.
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {}
    #: Prefix of the system tables' names. Set it only to restore a state whose writer used another prefix.
    system_prefix: ClassVar[str] = "statehold."
    #: The function that takes the pending calls of an earlier release, by the stored name, such as `shop.app:post`.
    renamed_effects: ClassVar[Mapping[str, Callable[..., object]]] = {}
    #: The input partition that this instance handles.
    partition: int = -1
    #: True during a replay: outputs and effects are suppressed, changes of tables are not.
    replaying: bool = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        """:raises UsageError: a hook is async or a generator, or takes other parameters than statehold passes."""
        super().__init_subclass__(**arguments)
        for name in HOOKS:
            hook = getattr(cls, name)
            require_plain(hook, f"{cls.__name__}.{name}")
            if hasattr(hook, DECLARATION):  # a method of an input, whose name another check rejects
                continue
            passed = tuple(inspect.signature(getattr(Handler, name)).parameters)
            if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod):
                passed = passed[1:]
            require_parameters(hook, f"{cls.__name__}.{name}", passed)

    _note_effect: Callable[[Callable[..., object], tuple[Any, ...], Mapping[str, Any]], None]
    _timers: Timers | None = None
    #: type or serde of the keys that `Service(key=...)` gives; None: none
    _service_key: Any = None

    def on_record(self, record: Record[V, K]) -> None:
        """Handle one record. If it raises, its changes and outputs are rolled back, and `on_failure` decides."""
        raise NotImplementedError

    def on_batch(self, records: Sequence[Record[V, K]]) -> None:
        """Handle some records at once, for vectorised code. Results must not depend on batch boundaries."""
        raise NotImplementedError

    def on_command(self, command: str, record: Record[bytes]) -> None:
        """Handle a command: an input record with the header `statehold-command`, in input order.

        `command` is the name in the header. `record.value` is `b""` if the record has no value, as those of `statehold
        command`. Ignore unknown names, because raising stops the partition as in on_record. The handler does not get
        statehold's own commands, such as `take`, which requests a full snapshot.
        """

    def on_timer(self, timer: Timer) -> None:
        """Handle a due timer that `schedule` has set. Writes, outputs and effects count as in on_record."""
        raise NotImplementedError

    def on_window(self, name: str, key: Any, start: int, end: int, value: Any) -> None:
        """Handle a window that has closed, once. Writes, outputs and effects count as in on_record.

        `name` is the attribute of the windows; `start` (included) and `end` (excluded) are milliseconds since 1970.
        """
        raise NotImplementedError

    def on_unmatched(self, name: str, key: Any, side: str, value: Any, timestamp: int) -> None:
        """Handle a record of a `JoinBuffer` that found no partner in time, once. Writes count as in on_record.

        `name` is the attribute of the buffer, `side` "left" or "right", `value` what was kept of the record, and
        `timestamp` the record's, in milliseconds since 1970.
        """
        raise NotImplementedError

    def on_late(self, name: str, key: Any, record: Record[Any, Any]) -> None:
        """Handle a record that came after a window of its time had closed; `update` calls it, or that of a join.

        Late records are counted in `statehold_late_records_total`. Without an on_late of your own they are also logged.
        """

    def on_live(self) -> None:
        """Prepare for new records after a restore. You may read tables; writing or sending is an error."""

    def on_stop(self) -> None:
        """Clean up before the partition leaves this process. Nothing that you write here is kept."""

    def effect(
        self, function: Callable[Concatenate[EffectKey, P], object], /, *args: P.args, **keywords: P.kwargs
    ) -> None:
        """Call `function(key, *args)` at least once after the commit of this record, and never in a replay.

        `key` is (topic, partition, offset, index), the same in every retry of this effect. Use it to let the other side
        ignore a second call. An `async def` runs on the process's event loop, any other function on a separate thread.
        It must not touch tables.

        :raises UsageError: the function does not take these arguments, cannot be found after a restart, or its body
            would not run; an argument is not plain data; no record is being handled.
        """
        require_no_generator(function, f"effect {getattr(function, '__qualname__', function)!r}")
        self._note_effect(function, args, keywords)

    def schedule(self, at: datetime | int, payload: Any = None, *, id: str = "") -> str:
        """Call `on_timer` when the partition's time reaches `at` (with a zone, or milliseconds since 1970).

        The timer is part of the state. `payload` is plain data. Return the timer's id: `id` if you give one, which
        replaces the timer with that id, else one made of the record's coordinates.
        """
        return self._own_timers().schedule(at, payload, id)

    def cancel(self, id: str) -> bool:
        """Remove a timer. Return whether it existed."""
        return self._own_timers().cancel(id)

    def _own_timers(self) -> Timers:
        if self._timers is None:
            raise UsageError(f"{type(self).__name__} has no on_timer, or no partition: it cannot schedule timers")
        return self._timers


#: makes the handler of a partition: the class itself, or a function without parameters
HandlerFactory = type[Handler[Any, Any]] | Callable[[], Handler[Any, Any]]
