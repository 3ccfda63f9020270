"""One operating-system process: its clients, its background threads, and what may happen to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.kafka.faults import CallFault, PortCall, ProcessCrashed
from statehold.testing.kafka.future_events import FutureEvent

T = TypeVar("T")
_NO_FAULT, _LOST = CallFault(), CallFault(never=True)


class SimulatedProcess:
    """Crashes, is frozen (SIGSTOP) and thawed, or is cut off from the brokers; its clients notice."""

    def __init__(self, kafka: SimulatedKafka, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.crashed = self.frozen = self.is_cut = False
        #: number of cuts so far, so that a client can see that its connections were lost
        self.cuts = 0
        self._after_thaw: list[Callable[[], object]] = []

    # What may happen

    def crash(self) -> None:
        """Do SIGKILL: all memory is gone, and the brokers notice only by time-outs."""
        self.crashed = True
        self._after_thaw.clear()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Continue; what was due meanwhile happens now."""
        self.frozen = False
        waiting, self._after_thaw = self._after_thaw, []
        for call in waiting:
            self.background(call)

    def cut(self) -> None:
        """Lose every connection to the brokers, until `heal`."""
        self.is_cut = True
        self.cuts += 1

    def heal(self) -> None:
        self.is_cut = False

    # For its clients

    def background(self, call: Callable[[], object]) -> None:
        """Run a step of a background thread: now, after the thaw, or never if the process has crashed."""
        if self.crashed:
            return
        if self.frozen:
            self._after_thaw.append(call)
        else:
            call()

    def after(self, seconds: float, call: Callable[[], object]) -> FutureEvent:
        """Run a step of a background thread later."""
        return self.kafka.timers.after(seconds, lambda: self.background(call))

    def wait(self, ready: Callable[[], bool], until: float) -> bool:
        """Wait on the thread that calls. Return whether `ready()` holds."""
        self.kafka.scheduler.wait(lambda: self.crashed or (not self.frozen and ready()), until)
        self.alive()
        return ready()

    def alive(self) -> None:
        """Let a frozen process stand still.

        :raises ProcessCrashed: it has crashed.
        """
        while self.frozen and not self.crashed:
            self.kafka.scheduler.wait(lambda: self.crashed or not self.frozen, float("inf"))
        if self.crashed:
            raise ProcessCrashed(self.name)
        self.kafka.turn()

    def background_fault(self, name: str, subject: str, partition: int = -1) -> CallFault:
        """Return what happens to a request of a background thread: nothing, or `never` with or without its effect."""
        if self.is_cut:
            return _LOST
        fault = self.kafka.point(PortCall(self.name, name, subject, partition, background=True)) or _NO_FAULT
        lost = fault.never or fault.error is not None or fault.delay > 0
        return fault._replace(never=lost)

    def request(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        deadline: float,
        timed_out: Callable[[], BaseException],
        subject: str = "",
        partition: int = -1,
        noted: Callable[[CallFault], None] = lambda fault: None,
    ) -> tuple[T, CallFault]:
        """Send a request and return its answer, with what happened to it.

        `deadline`: when the call ends, in the clock's seconds; it raises what `timed_out` returns. `noted` gets what
        will happen to the request before it does.
        """
        self.alive()
        fault = self.kafka.point(PortCall(self.name, name, subject, partition)) or _NO_FAULT
        self.alive()
        noted(fault)
        clock = self.kafka.clock
        arrives = clock() + fault.delay
        if fault.delay > 0 and not fault.after:
            self.wait(lambda: False, min(arrives, deadline))
            if arrives > deadline:
                raise timed_out()
        if self.is_cut and not self.wait(lambda: not self.is_cut, deadline):
            raise timed_out()
        if fault.never and not fault.after:
            self.wait(lambda: False, deadline)
            raise timed_out()
        if fault.error is not None and not fault.after:
            raise fault.error
        answer = effect()
        if fault.never or arrives > deadline:
            self.wait(lambda: False, deadline)
            raise timed_out()
        if fault.delay > 0 and fault.after:
            self.wait(lambda: False, arrives)
        if fault.error is not None:
            raise fault.error
        return answer, fault
