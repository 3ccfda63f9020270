"""What becomes of a record that cannot be handled: policies, declared by exception class on a `Handler`.

    class Payments(Handler[Payment]):
        on_failure = {
            BankDown: retry(5, seconds=0.2).then(dead_letter()),
            UndecodableRecord: dead_letter(),
        }

The most specific class counts. What no class matches is parked: the partition stops at the record (docs/failures.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from statehold.errors import UsageError

if TYPE_CHECKING:
    import tenacity.wait

End = Literal["park", "stop", "dead_letter"]
#: more delays than anybody needs: each is a topic
_MOST_DELAYS: Final = 8


@dataclass(frozen=True, slots=True)
class Policy:
    """Tries in place, then tries later, then an end; made by the functions of this module."""

    end: End = "park"
    #: whether later records of the key follow a dead letter
    ordered: bool = True
    #: tries in place after the first one
    retries: int = 0
    #: seconds before the first of them, and at most; or a wait of tenacity
    seconds: float = 0.0
    longest: float = 0.0
    wait: tenacity.wait.wait_base | None = None
    #: seconds of each try by way of a retry topic
    delays: tuple[float, ...] = ()
    #: delays are meant although the handler has tables
    any_order: bool = False

    def then(self, policy: Policy) -> Policy:
        """What happens when the tries of this one are used up.

        :raises UsageError: this one has an end already, or the other one tries in place again.
        """
        ended = self.end != "park" and not self.delays
        if ended or policy.retries or (self.delays and policy.delays):
            raise UsageError("a policy is retry(...), then retry_later(...), then an end; each once and in this order")
        delays, any_order = policy.delays or self.delays, policy.any_order or self.any_order
        return replace(self, end=policy.end, ordered=policy.ordered, delays=delays, any_order=any_order)

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after so many tries in place."""
        import tenacity

        wait = self.wait or tenacity.wait_random_exponential(multiplier=self.seconds, max=self.longest)
        state: Any = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = attempt
        return wait(state)


def retry(times: int, *, seconds: float = 0.1, longest: float = 10.0, wait: Any = None) -> Policy:
    """Try again in place, up to `times` times: the order is kept, the partition waits, the others go on.

    A pause is random, up to `seconds`, doubled each time and never above `longest`; or what `wait` says, a wait of
    tenacity. A stop or a rebalance ends it at once. Then the partition parks, unless `.then(...)` says something else.

    :raises UsageError: not a positive number of tries, or negative seconds.
    """
    if times < 1 or seconds < 0 or longest < seconds:
        raise UsageError("retry(times, seconds=, longest=): at least one try, and 0 <= seconds <= longest")
    return Policy(retries=times, seconds=seconds, longest=longest, wait=wait)


def retry_later(*seconds: float, any_order: bool = False) -> Policy:
    """Try again after so many seconds each, by way of a retry topic per delay, while the input goes on.

    The record is handled after those that came later: refused for a handler with tables, unless `any_order` says that
    this is meant. After the last delay it is a dead letter that no other record follows, unless `.then(...)` says
    something else.

    :raises UsageError: no delay, or one that is not positive.
    """
    if not seconds or min(seconds) <= 0 or len(seconds) > _MOST_DELAYS:
        raise UsageError(f"retry_later(60, 600): one to {_MOST_DELAYS} delays in seconds, each above 0")
    return Policy("dead_letter", ordered=False, delays=tuple(map(float, seconds)), any_order=any_order)


def dead_letter(*, ordered: bool = True) -> Policy:
    """Send it to `<service>.<input>.dead` as it was received, and go on.

    With `ordered` its key is parked: later records of the key follow it there until it is released (`statehold dlq`).
    """
    return Policy(end="dead_letter", ordered=ordered)


def park() -> Policy:
    """The partition stops at the record until `statehold retry`; the others go on. What happens without a policy."""
    return Policy()


def stop() -> Policy:
    """The whole service stops, with the record's error."""
    return Policy(end="stop")
