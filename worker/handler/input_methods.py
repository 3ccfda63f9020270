"""Hand each record of several inputs to the method that `on` has declared for its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from statehold.api.handler import Handler
from statehold.api.record import MergedMessage, Message, Record
from statehold.api.values import serde
from statehold.bound.inputs import InputMethod


class InputMethods:
    """The methods and decoders of one handler; used by the partition's thread."""

    def __init__(self, handler: Handler[Any], names: Sequence[str], declared: dict[str, InputMethod]) -> None:
        """`names`: the service's inputs, in their order. `declared`: what `methods` returns for the handler."""
        inputs = [topic for topic in names if topic in declared] or list(declared)
        self._decoders: list[Callable[[Any], Any]] = [
            serde.for_messages(declared[topic].value).decode for topic in inputs
        ]
        self._methods: list[Callable[[Record[Any]], None]] = [
            getattr(handler, declared[topic].name) for topic in inputs
        ]

    def decode(self, message: Message) -> Any:
        """Return the value of a record. Raises what the decoder of its input raises."""
        return self._decoders[_input_of(message)](message.value())

    def decode_all(self, messages: Sequence[Message], given: Sequence[Any]) -> list[Any]:
        """Return the values of records, `given` as bytes. Raises as `decode`."""
        decoders = self._decoders
        if not isinstance(messages[0], MergedMessage):
            return list(map(decoders[0], given))
        return [decoders[message.input](data) for message, data in zip(messages, given, strict=True)]  # type: ignore[attr-defined]

    def calls(self, messages: Sequence[Message]) -> Iterable[Callable[[Record[Any]], None]]:
        """Return the method of each record's input."""
        methods = self._methods
        if not isinstance(messages[0], MergedMessage):
            return repeat(methods[0])
        return [methods[message.input] for message in messages]  # type: ignore[attr-defined]


def _input_of(message: Message) -> int:
    # With one input it is the message that the client has made.
    return message.input if isinstance(message, MergedMessage) else 0
