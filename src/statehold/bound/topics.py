"""The topics that a handler declares, and its class."""

from __future__ import annotations

from typing import Any

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.policies import failure_topics
from statehold.bound.reference import references
from statehold.common.names import Names
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
