"""What becomes of a record that cannot be handled: policies, declared by exception class on a `Handler`.

    class Payments(Handler[Payment]):
        on_failure = {
            BankDown: retry(5, seconds=0.2).then(dead_letter()),
            UndecodableRecord: dead_letter(),
        }

The most specific class counts. What no class matches is parked: the partition stops at the record (docs/failures.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from statehold.errors import HandlerFailed, UndecodableRecord, UsageError

if TYPE_CHECKING:
    import tenacity.wait

    from statehold.common.names import Names
    from statehold.handler import Handler

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


def policy_of(kind: type[Handler[Any]], error: BaseException) -> Policy | None:
    """What the handler class declares for this error: for the most specific class of the exception that was raised."""
    found, cause = _declared(kind), raised(error)
    classes = list(type(cause).__mro__)
    if isinstance(cause, UndecodableRecord) and cause.__cause__ is not None:
        # Its decoder's own error, then; but Exception is said of everything.
        own = [cls for cls in type(cause.__cause__).__mro__ if not issubclass(Exception, cls)]
        classes[1:1] = [cls for cls in own if cls not in classes]
    return next((found[cls] for cls in classes if cls in found), None)


def raised(error: BaseException) -> BaseException:
    """What a policy goes by: the handler's own exception."""
    return error.__cause__ if isinstance(error, HandlerFailed) and error.__cause__ is not None else error


def policies(kind: type[Handler[Any]]) -> list[Policy]:
    """Every policy that a handler class declares.

    :raises UsageError: it tries later although it has tables or timers and does not say that any order will do.
    """
    from statehold.handler import Handler
    from statehold.table import Table

    found = list(_declared(kind).values())
    timers = ["on_timer"] if kind.on_timer is not Handler.on_timer else []
    tables = timers + [name for cls in kind.__mro__ for name, value in vars(cls).items() if isinstance(value, Table)]
    if tables and any(policy.delays and not policy.any_order for policy in found):
        raise UsageError(
            f"{kind.__name__} keeps state ({', '.join(tables)}), and retry_later handles a record after later ones, "
            f"of its key, too: use retry(...) or dead_letter(), or say retry_later(..., any_order=True)"
        )
    return found


def delays(kind: type[Handler[Any]]) -> list[float]:
    """The delays that take a retry topic each, shortest first."""
    return sorted({delay for policy in policies(kind) for delay in policy.delays})


def sends_letters(kind: type[Handler[Any]]) -> bool:
    """Whether records of this handler may become dead letters, or be tried later."""
    return any(policy.end == "dead_letter" or policy.delays for policy in policies(kind))


def letter_topics(kind: type[Handler[Any]], names: Names) -> list[str]:
    """The topics that its policies need beside its outputs; raises as `policies`."""
    if not sends_letters(kind):
        return []
    return [names.dead, *retry_topics(kind, names)]


def retry_topics(kind: type[Handler[Any]], names: Names) -> list[str]:
    """Those of the delays, shortest first; raises as `policies`."""
    return [names.retry(delay) for delay in delays(kind)] if kind.on_failure else []


def _declared(kind: type[Handler[Any]]) -> Mapping[type[BaseException], Policy]:
    found: Mapping[type[BaseException], Policy] = kind.on_failure
    for cls, policy in found.items():
        given: tuple[object, object] = cls, policy
        if not (isinstance(given[0], type) and issubclass(cls, Exception) and isinstance(given[1], Policy)):
            raise UsageError(f"{kind.__name__}.on_failure: {cls!r}: {policy!r} is no exception class with a policy")
    return found
