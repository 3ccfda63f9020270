"""The pending calls of a `Call`: a table whose rows the handler adds by calling it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from statehold.api.call import RECORD_KEY, Call, CallOptions, PendingCall, call_options
from statehold.api.values import serde
from statehold.errors import UsageError
from statehold.state.partition_table import PartitionTable

A = TypeVar("A")
R = TypeVar("R")
#: adds a row: the table, the argument, the key or RECORD_KEY; returns its id
Request = Callable[["CallTable[Any, Any]", Any, Any], str]


class CallTable(PartitionTable[str, PendingCall[A]], Call[A, R], Generic[A, R]):
    """The calls of one partition that are pending or dead, by id."""

    #: set for each partition
    _request: Request
    _forget: Callable[[str], None]

    def __init__(self, declaration: Call[A, R]) -> None:
        super().__init__(declaration)
        self.options: CallOptions = call_options(declaration)
        self.argument: serde.Serde[A] = serde.for_state(self.options.argument)
        self.result: serde.Serde[R] = serde.for_state(self.options.result)

    def follow(self, request: Request, forget: Callable[[str], None]) -> None:
        """`forget`: stops a call that was cancelled."""
        self._request, self._forget = request, forget

    def __call__(self, argument: A, *, key: str | bytes | None = RECORD_KEY) -> str:
        return self._request(self, argument, key)

    def cancel(self, id: str) -> bool:
        there = id in self
        if there:
            self.remove(id)
            self._forget(id)
        return there

    def __setitem__(self, key: str, value: PendingCall[A]) -> None:
        raise self._written_by_hand()

    def put(self, key: str, value: PendingCall[A]) -> None:
        raise self._written_by_hand()

    def delete(self, key: str) -> None:
        self.cancel(key)

    def _written_by_hand(self) -> UsageError:
        name = self.attribute
        return UsageError(f"{name} holds calls. Next: self.{name}(argument) makes one, self.{name}.cancel(id) ends it")

    # For the engine

    def write(self, id: str, row: PendingCall[A]) -> None:
        self._replace(id, row)

    def remove(self, id: str) -> None:
        PartitionTable.delete(self, id)
