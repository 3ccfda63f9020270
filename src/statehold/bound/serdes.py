"""The types of a handler's messages, and the check of their serdes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from statehold.api.declaration import options_of
from statehold.api.handler import Handler
from statehold.api.output import Output, OutputOptions
from statehold.api.values import serde
from statehold.api.values.keys import OfKeys, key_serde, same_bytes
from statehold.common.class_body import class_attributes, once_per_class
from statehold.common.type_arguments import type_arguments, with_default


def check_schemas(kind: type[Handler[Any]], inputs: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    """Check each serde that knows its topic (`statehold.api.values.schema`).

    `inputs` and `keys`: the type or serde of the values and the keys of each input.

    :raises StartError: a serde does not fit the schema of its topic.
    """
    for topic, value in inputs.items():
        if (given := _of_topic(value, topic)) is not None:
            given.check_input()
    for topic, key in keys.items():
        if (given := _of_keys(key, topic)) is not None:
            given.check_input()
    for output in class_attributes(kind, Output).values():
        options: OutputOptions = options_of(output)
        if (given := _of_topic(options.value_type, options.topic)) is not None:
            given.check_output()
        if options.key is not None and (given := _of_keys(options.key.type, options.topic)) is not None:
            given.check_output()


def _of_topic(kind: Any, topic: str) -> serde.OfTopic | None:
    found = serde.of_topic(kind)
    if found is None:
        return None
    made: object = found.for_topic(topic)
    return made if isinstance(made, serde.OfTopic) else None


def _of_keys(kind: Any, topic: str) -> serde.OfTopic | None:
    given = serde.bare(serde.without_none(kind))
    made: object = given.for_keys_of(topic) if isinstance(given, OfKeys) else None
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
    """Return the type of the values of `Handler[...]`; bytes without one."""
    found = _message_types(kind)[0]
    return bytes if isinstance(found, TypeVar) else found


@once_per_class
def key_type(kind: type[Handler[Any]]) -> Any:
    """Return the type or serde of the keys of `Handler[..., K]`; None: bytes, or no key.

    :raises UsageError: such keys are not supported.
    """
    found = _message_types(kind)[1]
    if isinstance(found, TypeVar) or same_bytes(found):
        return None
    return key_serde(f"{kind.__name__}: Handler[..., KEY]", found).type


def _message_types(kind: type[Handler[Any]]) -> tuple[Any, Any]:
    """Return the types of values and keys in the bases of a class; a type variable of the class, if it is open."""
    value, key = type_arguments(kind, Handler)
    return with_default(value), with_default(key)
