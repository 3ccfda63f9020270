"""Hold a failed partition: assigned and paused, without state, until a retry can help."""

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

#: seconds between two questions to the group whether this process still owns a fenced partition (rule T8)
_CONFIRM_EVERY: Final = 1.0
#: seconds until the retry of a failure that may end by itself: an outage may outlast restore.deadline, and a
#: replaced leader may report an old end of its log
_AGAIN_AFTER: Final[dict[type[BaseException], float]] = {
    RestoreTimeout: 30.0,
    RegistryUnreachable: 30.0,
    SinkUnreachable: 30.0,
    OffsetDisagrees: 60.0,
    MemoryShort: 60.0,  # because other partitions may have left meanwhile
    AccessLost: 30.0,
}


def await_retry(tools: Tools, signals: Signals, ownership: Ownership, cause: BaseException | None) -> Event:
    """Wait for a signal, or until a retry can help; after a fence only if the group names this process as the owner."""
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
    """Return an error that names the missing ACL if the brokers deny access, else the error itself."""
    finding = tools.access.explain(error)
    if not finding:
        return error
    place = tools.place
    return AccessLost(
        f"{finding}. Nothing is lost, and the partition continues by itself once that is fixed. Next: restore the "
        f"access; `statehold retry {place.partition}` retries now",
        topic=place.input,
        partition=place.partition,
    )


def _let_in(tools: Tools, cause: BaseException | None) -> bool:
    """Return whether a retry can succeed, because a denied restore would only load the brokers."""
    return not isinstance(cause, AccessLost) or tools.access.granted()
