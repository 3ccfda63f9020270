"""The types of a handler's messages, and the check of their serdes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from statehold.api.declaration import options_of
from statehold.api.handler import Handler
from statehold.api.output import Output, OutputOptions
from statehold.api.values import serde
from statehold.common.class_body import class_attributes, once_per_class


def check_schemas(kind: type[Handler[Any]], inputs: Mapping[str, Any]) -> None:
    """Check each serde that knows its topic (`statehold.api.values.schema`). `inputs`: the type or serde of each input.

    :raises StartError: a serde does not fit the schema of its topic.
    """
    for topic, value in inputs.items():
        if (given := _of_topic(value, topic)) is not None:
            given.check_input()
    for output in class_attributes(kind, Output).values():
        options: OutputOptions = options_of(output)
        if (given := _of_topic(options.value_type, options.topic)) is not None:
            given.check_output()


def _of_topic(kind: Any, topic: str) -> serde.OfTopic | None:
    found = serde.of_topic(kind)
    if found is None:
        return None
    made: object = found.for_topic(topic)
    return made if isinstance(made, serde.OfTopic) else None


@once_per_class
def shared_serde(kind: type[Handler[Any]]) -> serde.Serde[Any] | None:
    """Return the serde of the handler's input; None if each partition needs one of its own (`partition_serde`)."""
    value = input_type(kind)
    return serde.for_messages(value) if serde.of_topic(value) is None else None


def partition_serde(kind: type[Handler[Any]]) -> serde.Serde[Any]:
    """Return a new serde of the handler's input, with clients of its own."""
    return serde.for_messages(input_type(kind))


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
