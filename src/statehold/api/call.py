"""The declaration of a durable call: a question to another system, whose answer becomes part of the state once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_origin, overload

import msgspec

from statehold.api.table import Table
from statehold.api.values import serde, versioned_values
from statehold.api.values.table_types import require_immutable
from statehold.common.class_body import require_parameters, require_plain
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

A = TypeVar("A")
R = TypeVar("R")
#: a method of the handler
M = TypeVar("M", bound=Callable[..., None])

#: the default key of a call: that of the record
RECORD_KEY: Final[Any] = object()


class PendingCall(msgspec.Struct, Generic[A], frozen=True, array_like=True, gc=False):
    """A row of a `Call`: a call whose answer is not in the state yet."""

    argument: A
    #: place among the calls of the partition: later calls have higher numbers
    number: int
    #: timestamp of the record that asked, in milliseconds since 1970
    time: int
    key: bytes | None = None
    #: of a dead call: its attempts and the last error; "" for a call that is waiting
    attempts: int = 0
    error: str = ""


class CallResult(msgspec.Struct, Generic[A, R], frozen=True, gc=False):
    """A call that was answered, as the method of `Call.on_result` gets it."""

    #: names the call; the function got the same
    id: str
    argument: A
    result: R
    key: bytes | None
    #: attempts of the process that got the answer
    attempts: int
    #: timestamp of the record that asked, and of the answer, in milliseconds since 1970
    requested: int
    answered: int


class CallFailure(msgspec.Struct, Generic[A], frozen=True, gc=False):
    """A call whose attempts are used up, as the method of `Call.on_failed` gets it."""

    id: str
    argument: A
    #: class and text of the last exception, at most 500 characters
    error: str
    key: bytes | None
    attempts: int
    requested: int
    failed: int


@dataclasses.dataclass(slots=True)
class CallOptions:
    """What a `Call` declares besides its table; times in seconds."""

    function: Callable[[str, Any], Any]
    argument: Any
    result: Any
    #: 0: until it is answered
    attempts: int
    backoff: float
    max_backoff: float
    timeout: float
    per_key_order: bool
    #: attempts per second of the process; 0: no limit
    rate: float
    #: failures in a row after which the other system counts as down; 0: never
    outage_after: int
    is_async: bool
    #: the names of the methods; "": there is no such method
    on_result: str = ""
    on_failed: str = ""


class Call(Table[str, PendingCall[A]], Generic[A, R]):
    """Declares a call of another system. In a started partition it makes the calls, and has those that are pending.

        score = Call(ask_scorer, argument=Payment, result=Score, attempts=5, timeout=2.0)

        def on_record(self, record: Record[Payment]) -> None:
            self.score(record.value, key=record.value.card)

        @score.on_result
        def scored(self, done: CallResult[Payment, Score]) -> None: ...

        @score.on_failed
        def unscored(self, failed: CallFailure[Payment]) -> None: ...

    `function(id, argument)` runs after the commit of the record that asked: an `async def` on the process's event loop,
    any other on a thread. It may run more than once, always with the same id and argument, and must not touch tables.
    What it returns goes to the method of `on_result` exactly once.

    An attempt ends after `timeout` seconds, and an attempt that raises is followed by another one: `backoff` seconds
    later, then twice as long, up to `max_backoff`. After `attempts` of them the method of `on_failed` gets the last
    error; without such a method the call is dead and waits for an operator. With `attempts=0` it is tried until it is
    answered. With `per_key_order` the calls of one key run one after the other, in the order of the records.

    `rate` limits the attempts per second of a process. After `outage_after` attempts that failed in a row the other
    system counts as down: then a single attempt probes it from time to time, and the other calls wait for the probe.

    `argument` and `result` are types that msgspec knows. `version`, `upcasters` and `was` are as for a `Table`: an
    upcaster makes the present argument of an older one.

    :raises UsageError: a type is not supported, a number is out of its range, or the function takes other parameters.
    """

    _call_options: CallOptions

    @overload
    def __init__(
        self,
        function: Callable[[str, A], Awaitable[R]],
        *,
        argument: type[A],
        result: type[R],
        attempts: int = 0,
        backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 30.0,
        timeout: float | timedelta = 30.0,
        per_key_order: bool = False,
        rate: float = 0,
        outage_after: int = 20,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        was: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self,
        function: Callable[[str, A], R],
        *,
        argument: type[A],
        result: type[R],
        attempts: int = 0,
        backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 30.0,
        timeout: float | timedelta = 30.0,
        per_key_order: bool = False,
        rate: float = 0,
        outage_after: int = 20,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        was: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self,
        function: Callable[[str, A], Awaitable[R] | R],
        *,
        argument: TypeForm[A],
        result: TypeForm[R],
        attempts: int = 0,
        backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 30.0,
        timeout: float | timedelta = 30.0,
        per_key_order: bool = False,
        rate: float = 0,
        outage_after: int = 20,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        was: str = "",
    ) -> None: ...

    def __init__(
        self,
        function: Any,
        *,
        argument: Any,
        result: Any,
        attempts: int = 0,
        backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 30.0,
        timeout: float | timedelta = 30.0,
        per_key_order: bool = False,
        rate: float = 0,
        outage_after: int = 20,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        was: str = "",
    ) -> None:
        for what, kind in (("argument", argument), ("result", result)):
            if isinstance(kind, serde.Serde):
                raise UsageError(
                    f"Call({what}={type(kind).__name__}(...)): give a type that msgspec knows, such as a msgspec.Struct"
                )
        serde.for_state(result)  # raises for a type that msgspec does not know
        for what, number in (("attempts", attempts), ("rate", rate), ("outage_after", outage_after)):
            if number < 0:
                raise UsageError(f"Call({what}={number!r}): give a number, or 0 for no limit")
        require_parameters(function, getattr(function, "__qualname__", repr(function)), ("id", "argument"))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"Call({function.__qualname__}): it is a generator: return the answer, and use no yield")
        called = type(function).__call__ if not inspect.isroutine(function) else function
        self._call_options = CallOptions(
            function,
            argument,
            result,
            attempts,
            _seconds("backoff", backoff, 0.0),
            _seconds("max_backoff", max_backoff, 0.0),
            _seconds("timeout", timeout, 0.001),
            per_key_order,
            rate,
            outage_after,
            inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called),
        )
        value: Any = PendingCall[argument]
        super().__init__(
            key=str,
            value=value,
            mutable=not _immutable(argument),
            version=version,
            upcasters={number: _of_rows(number, given) for number, given in (upcasters or {}).items()},
            was=was,
        )

    def __call__(self, argument: A, *, key: str | bytes | None = RECORD_KEY) -> str:
        """Make the call after the commit of this record, and return its id.

        `key` is by default that of the record; None stands for no key, and no order.

        :raises UsageError: the argument is not of the declared type, or no record is being handled.
        """
        raise self._unbound()

    def cancel(self, id: str) -> bool:
        """Forget a pending call: its answer does not arrive any more. Return whether it was pending.

        The other system may have received it, or may receive it still if an attempt is in progress.
        """
        raise self._unbound()

    def on_result(self, method: M) -> M:
        """Decorate the method that gets each answer: `def scored(self, done: CallResult[Argument, Result])`."""
        self._call_options.on_result = _method(method, self._call_options.on_result, "on_result")
        return method

    def on_failed(self, method: M) -> M:
        """Decorate the method that gets the calls whose attempts are used up: `def f(self, failed: CallFailure[A])`."""
        self._call_options.on_failed = _method(method, self._call_options.on_failed, "on_failed")
        return method


def call_options(declaration: Call[Any, Any]) -> CallOptions:
    return declaration._call_options


def _method(method: Callable[..., None], other: str, decorator: str) -> str:
    name = method.__name__
    require_plain(method, f"{method.__qualname__}, the method of {decorator},")
    require_parameters(method, method.__qualname__, ("self", "call"))
    if other:
        raise UsageError(f"both {other!r} and {name!r} are decorated with {decorator} of one Call")
    return name


def _of_rows(version: int, given: versioned_values.Upcaster) -> versioned_values.Upcaster:
    """Return the upcaster of rows that this upcaster of arguments is."""
    step, what = given[1] if isinstance(given, tuple) else given, f"the upcaster of version {version}"
    require_plain(step, what)
    require_parameters(step, what, ("old",))
    kind: Any = given[0] if isinstance(given, tuple) else versioned_values.old_type(given)
    if kind is Any:
        return lambda row: [step(row[0]), *row[1:]]
    if kind is PendingCall or get_origin(kind) is PendingCall:
        raise UsageError(f"{what} takes {kind!r:.100}. Next: let it take and return the argument of the call alone")
    rows: Any = PendingCall[kind]
    return rows, lambda row: msgspec.structs.replace(row, argument=step(row.argument))


def _immutable(kind: Any) -> bool:
    try:
        require_immutable(kind)
    except UsageError:
        return False
    return True


def _seconds(name: str, value: float | timedelta, least: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not least <= seconds <= 86_400:
        raise UsageError(f"Call({name}={value!r}): give seconds, from {least:g} to 86400")
    return seconds
