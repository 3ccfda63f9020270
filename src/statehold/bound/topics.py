"""The topics that a handler declares, and its class."""

from __future__ import annotations

from typing import Any

from statehold.api.handler import Handler, HandlerFactory
from statehold.api.values.key_types import read_key_type
from statehold.api.values.keys import key_serde, same_bytes
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.policies import failure_topics
from statehold.bound.reference import references
from statehold.bound.serdes import key_type
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.state.kinds.replies import RepliesTable


def class_of(handler: HandlerFactory) -> type[Handler[Any]]:
    """Return the handler's class, also if `handler` is a function."""
    if isinstance(handler, WithKeys):
        return class_of(handler.factory)
    return handler if isinstance(handler, type) else type(handler())


def output_topics(handler: HandlerFactory, names: Names) -> list[str]:
    """Return the topics of the outputs that the handler declares, of its failure policies, and of replies.

    The topics of a `Rekey` are not among them: they are inputs (`Names.rekeys`).
    """
    kind = class_of(handler)
    topics = [output.topic for output in tables_and_outputs(kind)[1].values()]
    return topics + failure_topics(kind, names) + ([] if replies_of(kind) is None else [names.replies])


def replies_of(kind: type[Handler[Any]]) -> RepliesTable[Any] | None:
    """Return the `Replies` that the handler declares; None if it answers no requests."""
    return next((each for each in tables_and_outputs(kind)[0].values() if isinstance(each, RepliesTable)), None)


def reference_topics(handler: HandlerFactory) -> list[str]:
    """Return the topics of the reference data that the handler declares."""
    return [each.topic for each in references(class_of(handler)).values()]


class WithKeys:
    """Makes handlers of a service that gives the type or serde of their keys (`with_keys`)."""

    def __init__(self, factory: HandlerFactory, key: Any) -> None:
        self.factory, self._service_key = factory, key

    def __call__(self) -> Handler[Any, Any]:
        made = self.factory()
        made._service_key = self._service_key
        return made


def with_keys(handler: HandlerFactory, key: Any) -> HandlerFactory:
    """Return a handler whose keys are of the type or serde that its service gives; None: the handler itself.

    :raises UsageError: the handler declares another type, or such keys are not supported.
    """
    if key is None:
        return handler
    given = key_serde("Service(key=...)", key)
    kind = class_of(handler)
    own = key_type(kind)
    if own is not None and read_key_type(own)[:2] != read_key_type(key)[:2]:
        raise UsageError(
            f"Service(key={given.name}): {kind.__name__} declares keys of the type {own}. Next: leave out the key of "
            f"the service, or give Handler[...] the same type"
        )
    return handler if same_bytes(given.type) else WithKeys(handler, given.type)
