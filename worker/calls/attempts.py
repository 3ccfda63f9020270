"""Decide what follows an attempt of a call, and what its answer is stored as. No clock, no thread."""

from __future__ import annotations

from typing import Any, Final

from statehold.api.call import CallOptions
from statehold.api.values.difference import brief
from statehold.common.decoding import UNREADABLE
from statehold.errors import CallDelayed, CallRejected, class_and_text, text_of
from statehold.messages.call_outcome import TEXT, CallJob, CallOutcome
from statehold.worker.common.context import CallFunction

#: of calls in the order of a key: their `Call` and the key
Lane = tuple[str, bytes]
#: doublings of a wait, at most: more would overflow
_DOUBLINGS: Final = 40


def wait_after(options: CallOptions, attempt: int, error: BaseException, part: float) -> float | None:
    """Return the seconds until the next attempt; None: this was the last one.

    `part`: of the longest wait, at random, because the calls that fail together would otherwise come again together.
    """
    if isinstance(error, CallRejected) or 0 < options.attempts <= attempt:
        return None
    longest = min(options.backoff * (1 << min(attempt - 1, _DOUBLINGS)), options.max_backoff)
    wait = longest * part
    return max(wait, error.seconds) if isinstance(error, CallDelayed) else wait


def failure(job: CallJob, attempt: int, error: BaseException) -> CallOutcome:
    return CallOutcome(job.call, job.id, attempt, None, stored_text(error))


def lane_of(job: CallJob, options: CallOptions) -> Lane | None:
    """Return what the call shares with those that run one after the other with it; None: it waits for no other."""
    return (job.call, job.key) if options.per_key_order and job.key is not None else None


def answered(job: CallJob, function: CallFunction, attempt: int, value: Any, largest: int) -> CallOutcome:
    """Return the outcome of an attempt that returned. :raises CallRejected: the value is no answer."""
    expected = function.options.result
    try:
        data = function.result.encode(value)
        function.result.decode(data)
    except (TypeError, ValueError, OverflowError, *UNREADABLE) as error:
        raise CallRejected(
            f"the function returned {brief(value)}, which is no {expected!r:.100}: {text_of(error)}"
        ) from error
    if len(data) > largest:
        raise CallRejected(
            f"the function returned {len(data)} bytes, and a commit record takes at most {largest} of an answer, a "
            f"quarter of kafka.message_max_bytes. Next: store it elsewhere, and return where"
        )
    return CallOutcome(job.call, job.id, attempt, data)


def stored_text(error: BaseException) -> str:
    """Return class and text of an error, as the outcome of a call keeps them."""
    return class_and_text(error)[:TEXT].encode(errors="replace").decode()
