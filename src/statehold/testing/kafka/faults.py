"""Where calls of clients pass, and what may happen to them there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from statehold.testing.kafka.future_events import FutureEvents
from statehold.testing.memory.clock import ManualClock


class ProcessCrashed(BaseException):
    """The process of this client was killed. No code of the product catches it, as none runs after SIGKILL."""


class PortCall(NamedTuple):
    """One call of a client, or one request of its background thread, on the way to the brokers."""

    process: str
    #: such as "fence", "send", "offsets", "commit", "abort", "bounds", "read", "heartbeat", "join"
    name: str
    #: the transactional id, the group, or the topic
    subject: str = ""
    partition: int = -1
    #: sent by a client's own thread: no task may run before it, and an error, a delay or no answer all mean that the
    #: client sends it again
    background: bool = False


class CallFault(NamedTuple):
    """Happens to one call. A call that is slow or never answered ends by its own deadline, with its port's error."""

    #: raised in place of the answer
    error: BaseException | None = None
    #: the brokers have done it, only the answer is lost
    after: bool = False
    #: seconds until the request arrives; with `after` until the answer does
    delay: float = 0.0
    #: no answer comes
    never: bool = False
    #: the network keeps a copy of the request; `SimulatedKafka.release` delivers it
    copy: bool = False


class Scheduler(Protocol):
    """Decides what runs next. The simulated clients call it, in the task that called them."""

    def wait(self, ready: Callable[[], bool], until: float) -> None:
        """Return when `ready()` is true or the clock has reached `until`; other tasks run meanwhile."""
        ...

    def point(self, call: PortCall) -> CallFault | None:
        """Let other tasks run before a call, unless it is `background`, and return what happens to it."""
        ...


class PassTime:
    """A scheduler with one task: a wait moves the clock from one event to the next."""

    def __init__(self, clock: ManualClock, timers: FutureEvents) -> None:
        self._clock, self._timers = clock, timers
        self._planned: list[tuple[str, str | None, CallFault]] = []
        #: called before each call
        self.on_call: Callable[[PortCall], None] | None = None

    def plan(self, name: str, fault: CallFault, *, times: int = 1, process: str | None = None) -> None:
        """Let this happen to the next calls of this name, of one process or of any."""
        self._planned += [(name, process, fault)] * times

    def point(self, call: PortCall) -> CallFault | None:
        if self.on_call is not None:
            self.on_call(call)
        for index, (name, process, fault) in enumerate(self._planned):
            if name == call.name and process in (None, call.process):
                del self._planned[index]
                return fault
        return None

    def wait(self, ready: Callable[[], bool], until: float) -> None:
        while True:
            self._timers.run_due()
            now = self._clock()
            if ready() or now >= until:
                return
            following = self._timers.next()
            if following is None and until == math.inf:
                raise RuntimeError("a simulated call waits for what never comes: nothing else will happen")
            self._clock.advance(max(0.0, min(until, until if following is None else following) - now))
