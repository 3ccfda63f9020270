"""A failed partition: stay assigned and paused, hold no state, and try again when that can help."""

from __future__ import annotations

from typing import Final

from statehold.errors import (
    AccessLost,
    Fenced,
    MemoryShort,
    OffsetDisagrees,
    RegistryUnreachable,
    RestoreTimeout,
    SinkUnreachable,
)
from statehold.worker.common.context import Tools
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.signals import Signals

#: seconds between two questions to the group whether a fenced partition is still ours (rule T8)
_CONFIRM_EVERY: Final = 1.0
#: seconds after which a failure is retried that the brokers themselves may end: an outage may outlast restore.deadline,
#: and a leader that was replaced and does not know it reports an old end of its log
_AGAIN_AFTER: Final[dict[type[BaseException], float]] = {
    RestoreTimeout: 30.0,
    RegistryUnreachable: 30.0,
    SinkUnreachable: 30.0,
    OffsetDisagrees: 60.0,
    MemoryShort: 60.0,  # others may have left meanwhile
    AccessLost: 30.0,
}


def await_retry(tools: Tools, signals: Signals, ownership: Ownership, cause: BaseException | None) -> Event:
    """Wait for a signal, or until a retry can help; a fence is retried only if the group says that we are the owner."""
    patience = _CONFIRM_EVERY if isinstance(cause, Fenced) else _AGAIN_AFTER.get(type(cause)) if cause else None
    while (event := signals.event()) is None:
        signals.forget_failure()
        if isinstance(cause, Fenced) and ownership.may_fence_again():
            event = Event.RETRY
            break
        woken = signals.any.wait(patience)
        if not woken and type(cause) in _AGAIN_AFTER and _let_in(tools, cause):
            event = Event.RETRY
            break
    if event is Event.RETRY:
        tools.log.info("retrying", after=str(cause))
    return event


def explained(tools: Tools, error: Exception) -> Exception:
    """Return which right is missing, where the brokers deny access; otherwise the error itself."""
    told = tools.access.explain(error)
    if not told:
        return error
    place = tools.place
    return AccessLost(
        f"{told}. Nothing is lost; it continues by itself when that is fixed, and `statehold retry "
        f"{place.partition}` tries now",
        topic=place.input,
        partition=place.partition,
    )


def _let_in(tools: Tools, cause: BaseException | None) -> bool:
    """A restore that is denied again would only load the brokers."""
    return not isinstance(cause, AccessLost) or tools.access.granted()
