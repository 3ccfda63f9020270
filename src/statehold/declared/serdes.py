"""The types of a handler's messages, and the check of their serdes."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

from statehold import serde
from statehold.common.declarations import declarations, once_per_class
from statehold.handler import Handler
from statehold.output import Output


def check_schemas(kind: type[Handler[Any]], input: str) -> None:
    """Check each serde that knows its topic (`statehold.schema`).

    :raises StartError: a serde does not fit the schema of its topic.
    """
    given = serde.for_messages(input_type(kind), input)
    if isinstance(given, serde.OfTopic):
        given.check_input()
    for output in declarations(kind, Output).values():
        sends = serde.for_messages(output.value_type, output.topic)
        if isinstance(sends, serde.OfTopic):
            sends.check_output()


@once_per_class
def input_serde(kind: type[Handler[Any]]) -> tuple[serde.Serde[Any], serde.OfTopic | None]:
    """Return the serde of the handler's input. The second one is not None if each partition needs one of its own."""
    value = input_type(kind)
    return serde.for_messages(value), serde.of_topic(value)


@once_per_class
def input_type(kind: type[Handler[Any]]) -> Any:
    """Return the type argument of `Handler[...]`; bytes without one."""
    for cls in kind.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Handler):
                argument = get_args(base)[0]
                return bytes if isinstance(argument, TypeVar) else argument
    return bytes
