"""A member's part of a group protocol: what a client's background thread does, and which callbacks are due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from statehold.errors import KafkaTrouble
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.faults import CallFault
from statehold.testing.kafka.future_events import FutureEvent
from statehold.testing.kafka.group import MemberFacts
from statehold.testing.kafka.offsets import GroupMetadata

#: seconds until a request that got no answer is sent again
RETRY = 0.5


class Callback(NamedTuple):
    """A rebalance callback that the next poll runs."""

    kind: Literal["assign", "revoke", "lost"]
    partitions: tuple[int, ...]


class ClientMembership(ABC):
    """The consumer that owns it runs `due` in its polls, and calls `done` after each callback."""

    def __init__(self, process: SimulatedProcess, group: str, facts: MemberFacts, max_poll: float) -> None:
        self.process, self.group, self.facts, self.max_poll = process, group, facts, max_poll
        self.member_id = ""
        self.generation = -1
        #: partitions that the application has
        self.owned: set[int] = set()
        self.due: deque[Callback] = deque()
        #: events for the application that are no callbacks
        self.errors: deque[KafkaTrouble] = deque()
        self.fatal: KafkaTrouble | None = None
        self.closed = False
        #: the application is inside of a poll, where the poll timer does not run
        self.in_poll = False
        self._polled = process.kafka.clock()
        self._watching = False
        self._pause: FutureEvent | None = None
        #: answers to requests before this number come too late
        self._round = 0

    @abstractmethod
    def start(self) -> None:
        """Join the group."""

    @abstractmethod
    def done(self, callback: Callback) -> None:
        """The application has run this callback."""

    @abstractmethod
    def leave(self, *, for_good: bool) -> None:
        """Leave the group. A static member keeps its place unless `for_good`."""

    @abstractmethod
    def rejoin(self) -> None:
        """Join as a new member."""

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(self.group, self.member_id, self.generation, self.facts.instance_id)

    @property
    def clock(self) -> Callable[[], float]:
        return self.process.kafka.clock

    def polled(self) -> None:
        """The application polls: note the time, and watch that it comes back."""
        self._polled = self.clock()
        if not self._watching and not self.closed:
            self._watching = True
            self.process.after(self.max_poll, self._watch)

    def _watch(self) -> None:
        self._watching = False
        if self.closed:
            return
        left = self._polled + self.max_poll - self.clock()
        if self.in_poll or left > 1e-9:
            self._watching = True
            self.process.after(self.max_poll if self.in_poll else left, self._watch)
            return
        self.errors.append(KafkaTrouble("_MAX_POLL_EXCEEDED: the application did not poll"))
        self.leave(for_good=not self.facts.instance_id)
        self.give_up("lost")

    def give_up(self, kind: Literal["revoke", "lost"]) -> None:
        """Have the application lose everything, then join as a new member."""
        self._round += 1
        self.generation = -1
        self.due = deque(each for each in self.due if each.kind != "assign")
        self.due.append(Callback(kind, tuple(sorted(self.owned))))

    def answers(self, handle: Callable[..., object], lost: Callable[[], object] = lambda: None) -> Callable[..., None]:
        """Return what takes the answer of a request to the member: a frozen process gets it later, one that has begun
        another round never. `lost` is called if the connection was lost meanwhile.
        """
        number, cuts = self._round, self.process.cuts

        def take(*answer: object) -> None:
            def step() -> None:
                if number != self._round or self.closed:
                    return
                if cuts == self.process.cuts:
                    handle(*answer)
                else:
                    lost()

            self.process.kafka.timers.after(0.0, lambda: self.process.background(step))

        return take

    def fault(self, name: str) -> CallFault:
        """Return what happens to a request of the background thread."""
        return self.process.background_fault(name, self.group)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do the next step of the protocol then, and nothing else before."""
        self.rest()
        number = self._round

        def step() -> None:
            if number == self._round and not self.closed:
                call()

        self._pause = self.process.after(seconds, step)

    def rest(self) -> None:
        """Do not do what `later` was to do."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
