"""The topics that a handler declares, and its class."""

from __future__ import annotations

from typing import Any

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.policies import failure_topics
from statehold.bound.reference import references
from statehold.bound.serdes import SERVICE_KEY, key_type
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.state.kinds.replies import RepliesTable


def class_of(handler: HandlerFactory) -> type[Handler[Any]]:
    """Return the handler's class, also if `handler` is a function."""
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


def with_keys(handler: HandlerFactory, key: Any) -> HandlerFactory:
    """Return a handler whose keys are of the type or serde that its service gives; None: the handler itself.

    :raises UsageError: the handler declares another type.
    """
    if key is None:
        return handler
    kind = class_of(handler)
    own = key_type(kind)
    if own not in (None, key) and isinstance(key, type):
        raise UsageError(
            f"Service(key={key.__name__}): {kind.__name__} declares keys of the type {own}. Next: leave out the key of "
            f"the service, or give Handler[...] the same type"
        )
    name, module = kind.__name__, kind.__module__
    body = {SERVICE_KEY: key, "__module__": module, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: type[Handler[Any]] = type(name, (kind,), body)
    if isinstance(handler, type):
        return made

    def with_these() -> Handler[Any]:
        found = handler()
        found.__class__ = made
        return found

    return with_these
