"""The failure policies that a handler class declares, and the topics they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from statehold.api.failures import Policy
from statehold.api.handler import Handler
from statehold.api.table import Dedupe, Table
from statehold.common.names import Names
from statehold.errors import HandlerFailed, UndecodableRecord, UsageError


def policy_of(kind: type[Handler[Any]], error: BaseException) -> Policy | None:
    """Return the policy that the handler class declares for the most specific class of this error.

    A timer, a window or a record without a partner that was due at the record and failed is retried in place as the
    policy says. Then the partition fails, because the record is not at fault (rule E4).
    """
    due = isinstance(error, HandlerFailed) and error.due != ""
    found, cause = kind.on_failure, raised(error)
    classes = list(type(cause).__mro__)
    if isinstance(cause, UndecodableRecord) and cause.__cause__ is not None:
        # Then by the decoder's own error, without Exception, because every error is one.
        own = [cls for cls in type(cause.__cause__).__mro__ if not issubclass(Exception, cls)]
        classes[1:1] = [cls for cls in own if cls not in classes]
    for cls in classes:
        if cls in found:
            policy = found[cls]
            return replace(policy, delays=(), end="park") if due and policy.end != "stop" else policy
    return None


def raised(error: BaseException) -> BaseException:
    """Return the handler's own exception, which decides about the policy."""
    return error.__cause__ if isinstance(error, HandlerFailed) and error.__cause__ is not None else error


def policies(kind: type[Handler[Any]]) -> list[Policy]:
    """Return every policy that a handler class declares.

    :raises UsageError: a policy retries later although the handler has tables or timers, without `any_order`.
    """
    found = list(_declared(kind).values())
    timers = ["on_timer"] if kind.on_timer is not Handler.on_timer else []
    tables = timers + [
        name for cls in kind.__mro__ for name, value in vars(cls).items() if isinstance(value, Table | Dedupe)
    ]
    if tables and any(policy.delays and not policy.any_order for policy in found):
        raise UsageError(
            f"{kind.__name__} keeps state ({', '.join(tables)}), and retry_later handles a record after later records "
            f"of the same key: use retry(...) or dead_letter(), or pass retry_later(..., any_order=True)"
        )
    return found


def delays(kind: type[Handler[Any]]) -> list[float]:
    """Return the delays, shortest first; each needs a retry topic."""
    return sorted({delay for policy in policies(kind) for delay in policy.delays})


def sends_dead_letters(kind: type[Handler[Any]]) -> bool:
    """Return whether records of this handler may be dead-lettered or sent to a retry topic."""
    return any(policy.end == "dead_letter" or policy.delays for policy in policies(kind))


def failure_topics(kind: type[Handler[Any]], names: Names) -> list[str]:
    """Return the topics that its policies need in addition to its outputs. Raises as `policies`."""
    if not sends_dead_letters(kind):
        return []
    return [names.dead, *retry_topics(kind, names)]


def retry_topics(kind: type[Handler[Any]], names: Names) -> list[str]:
    """Return the retry topics, shortest delay first. Raises as `policies`."""
    return [names.retry(delay) for delay in delays(kind)] if kind.on_failure else []


def _declared(kind: type[Handler[Any]]) -> Mapping[type[BaseException], Policy]:
    found: Mapping[type[BaseException], Policy] = kind.on_failure
    for cls, policy in found.items():
        given: tuple[object, object] = cls, policy
        if not (isinstance(given[0], type) and issubclass(cls, Exception) and isinstance(given[1], Policy)):
            raise UsageError(f"{kind.__name__}.on_failure: {cls!r}: {policy!r} is not an exception class with a policy")
    return found
