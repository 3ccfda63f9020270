"""Hold a failed partition: assigned and paused, without state, until a retry can help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehold.errors import (
    AccessLost,
    Fenced,
    LocalStoreFailed,
    MemoryShort,
    OffsetDisagrees,
    RegistryUnreachable,
    RestoreTimeout,
    SinkUnreachable,
    class_and_text,
    text_of,
)
from statehold.ports import Cancelled
from statehold.worker.common.context import Tools
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.ownership import Ownership
from statehold.worker.common.reporting import log_failure
from statehold.worker.common.signals import Signals
from statehold.worker.common.traceback_gc import clear_frames

#: seconds between two questions to the group whether this process still owns a fenced partition (rule T8)
_CONFIRM_EVERY: Final = 1.0
#: seconds between two tries to wait for the retry
_WAIT_AGAIN: Final = 1.0
#: seconds until the retry of a failure that may end by itself: an outage may outlast restore.deadline, and a
#: replaced leader may report an old end of its log
_AGAIN_AFTER: Final[dict[type[BaseException], float]] = {
    RestoreTimeout: 30.0,
    RegistryUnreachable: 30.0,
    SinkUnreachable: 30.0,
    OffsetDisagrees: 60.0,
    MemoryShort: 60.0,  # because other partitions may have left meanwhile
    AccessLost: 30.0,
    LocalStoreFailed: 10.0,  # because a disk may have room again, and damaged files were dropped
}


def hold_failed(
    tools: Tools, signals: Signals, ownership: Ownership, release: Callable[[], None], cause: BaseException | None
) -> Event | None:
    """Release what the partition holds, log its failure, and wait for a retry. None: try again to wait.

    An error of the wait itself does not replace the cause.
    """
    try:
        release()
        log_failure(tools, cause)
        clear_frames(cause)
        return await_retry(tools, signals, ownership, cause)
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001  because any error is the failure of this partition alone
        tools.log.warning("kafka_retry", doing="wait for a retry", cause=class_and_text(error))
        signals.any.wait(_WAIT_AGAIN)
        return None


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
        tools.log.info("retrying", after=text_of(cause) if cause is not None else None)
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
