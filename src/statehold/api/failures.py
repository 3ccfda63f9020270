"""Failure policies: what statehold does with a record whose handler call raises, by exception class.

    class Payments(Handler[Payment]):
        on_failure = {
            BankDown: retry(5, seconds=0.2).then(dead_letter()),
            UndecodableRecord: dead_letter(),
        }

The most specific class counts. If no class matches, the partition is paused at the record
(docs/how-to/write/failures.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from statehold.common.class_body import require_parameters
from statehold.errors import UsageError

if TYPE_CHECKING:
    import tenacity.wait

End = Literal["park", "stop", "dead_letter"]
#: most delays of a policy, because each is a topic
_MOST_DELAYS: Final = 8


@dataclass(frozen=True, slots=True)
class Policy:
    """Retries in place, then by retry topics, then an end. The functions of this module make it."""

    end: End = "park"
    #: whether later records of the key follow it to the dead-letter topic
    ordered: bool = True
    #: retries in place after the first try
    retries: int = 0
    #: seconds before the first of them, and the longest pause; or a wait of tenacity
    seconds: float = 0.0
    longest: float = 0.0
    wait: tenacity.wait.wait_base | None = None
    #: delay of each retry topic in seconds
    delays: tuple[float, ...] = ()
    #: allows delays although the handler has tables
    any_order: bool = False

    def then(self, policy: Policy) -> Policy:
        """Add the policy for the time after the retries of this one.

        :raises UsageError: this policy has an end already, or the other one retries in place again.
        """
        ended = self.end != "park" and not self.delays
        if ended or policy.retries or (self.delays and policy.delays):
            raise UsageError("a policy is retry(...), then retry_later(...), then an end; each once and in this order")
        delays, any_order = policy.delays or self.delays, policy.any_order or self.any_order
        return replace(self, end=policy.end, ordered=policy.ordered, delays=delays, any_order=any_order)

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after this many tries in place."""
        import tenacity

        wait = self.wait or tenacity.wait_random_exponential(multiplier=self.seconds, max=self.longest)
        state: Any = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = attempt
        return wait(state)


def retry(times: int, *, seconds: float = 0.1, longest: float = 10.0, wait: Any = None) -> Policy:
    """Retry in place, up to `times` times. The order is kept, the partition waits, and the others continue.

    A pause is random: up to `seconds`, doubled each time, never above `longest`. Or give `wait`, a wait of tenacity. A
    stop or a rebalance ends a pause at once. After the last retry the partition is paused, unless `.then(...)` differs.

    :raises UsageError: the number of retries is not positive, seconds are negative, or `wait` takes other arguments.
    """
    if times < 1 or seconds < 0 or longest < seconds:
        raise UsageError("retry(times, seconds=, longest=): at least one try, and 0 <= seconds <= longest")
    if wait is not None:
        require_parameters(wait, "retry(wait=...)", ("retry_state",))
    return Policy(retries=times, seconds=seconds, longest=longest, wait=wait)


def retry_later(*seconds: float, any_order: bool = False) -> Policy:
    """Retry after each of these delays in seconds, with one retry topic per delay, while the input continues.

    The record is then handled after later ones. A handler with tables therefore has to allow it with `any_order`. After
    the last delay it is dead-lettered without its key's later records, unless `.then(...)` differs.

    :raises UsageError: no delay, or one that is not positive.
    """
    if not seconds or min(seconds) <= 0 or len(seconds) > _MOST_DELAYS:
        raise UsageError(f"retry_later(60, 600): one to {_MOST_DELAYS} delays in seconds, each above 0")
    return Policy("dead_letter", ordered=False, delays=tuple(map(float, seconds)), any_order=any_order)


def dead_letter(*, ordered: bool = True) -> Policy:
    """Send the record as it was received to `<service>.<input>.dead`, and continue.

    With `ordered` its key is blocked: later records of the key follow it there until you resolve it (`statehold dlq`).
    """
    return Policy(end="dead_letter", ordered=ordered)


def park() -> Policy:
    """Pause the partition at the record until `statehold retry`; the others continue. The default."""
    return Policy()


def stop() -> Policy:
    """Stop the whole service with the record's error."""
    return Policy(end="stop")
