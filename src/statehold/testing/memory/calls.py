"""The calls of one partition of a driver: a test answers them, or they run on the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from statehold.messages.call_outcome import CallJob, CallOutcome
from statehold.worker.calls import attempts
from statehold.worker.calls.event_loop import process_loop
from statehold.worker.common.context import CallSetting


class OpenCall(NamedTuple):
    """A call that a test has not answered: its id, the stored name of its `Call`, and what the function gets."""

    id: str
    name: str
    argument: Any
    key: bytes | None
    #: number of this attempt
    attempt: int


class HeldCalls:
    """What a runner of calls in this process has: those in progress, and those that have ended."""

    def __init__(self, about: CallSetting) -> None:
        self._about = about
        self._jobs: dict[str, CallJob] = {}
        #: attempts so far of those that failed
        self._failed: dict[str, int] = {}
        self._outcomes: list[CallOutcome] = []

    def drop(self, ids: Sequence[str]) -> None:
        for each in ids:
            self._jobs.pop(each, None)

    def finished(self) -> list[CallOutcome]:
        found, self._outcomes = self._outcomes, []
        return found

    def outages(self) -> tuple[str, ...]:
        return ()

    def blocked(self) -> str:
        return ""

    def _lane(self, job: CallJob) -> attempts.Lane | None:
        return attempts.lane_of(job, self._about.calls[job.call].options)


class DriverCalls(HeldCalls):
    """Implements `Calls`: an attempt ends when the test says so, and the next one begins when its wait is over."""

    def __init__(self, about: CallSetting, *, run: bool) -> None:
        """`run`: call the functions, on this thread."""
        super().__init__(about)
        self._run = run
        #: when the next attempt of a call begins that has failed
        self._due: dict[str, float] = {}

    def submit(self, jobs: Sequence[CallJob]) -> None:
        for job in jobs:
            self._jobs.setdefault(job.id, job)
        self.run()

    def close(self, timeout: float) -> None:
        self._jobs.clear()

    # For the test

    def open(self) -> list[OpenCall]:
        """Return the attempts in progress, in the order of the requests."""
        found, busy, now = [], set[attempts.Lane](), self._about.clock()
        for job in self._jobs.values():
            if (lane := self._lane(job)) is not None:
                if lane in busy:
                    continue
                busy.add(lane)
            if self._due.get(job.id, now) <= now:
                argument = self._about.calls[job.call].argument.decode(job.argument)
                found.append(OpenCall(job.id, job.call, argument, job.key, self._failed.get(job.id, 0) + 1))
        return found

    def answer(self, call: OpenCall, value: Any) -> None:
        """:raises CallRejected: the value is no answer of this call."""
        job = self._jobs[call.id]
        outcome = attempts.answered(job, self._about.calls[job.call], call.attempt, value, self._about.largest)
        self._end(outcome)

    def fail(self, call: OpenCall, error: BaseException) -> None:
        """End an attempt. Another one follows after its wait, unless it was the last."""
        job = self._jobs[call.id]
        wait = attempts.wait_after(self._about.calls[job.call].options, call.attempt, error, 1.0)
        self._about.report(job, error, call.attempt, wait is None)
        if wait is None:
            self._end(attempts.failure(job, call.attempt, error))
        else:
            self._failed[job.id], self._due[job.id] = call.attempt, self._about.clock() + wait

    def finished_late(self, outcome: CallOutcome) -> None:
        """Hand over what no attempt in progress has returned, such as a second answer."""
        self._outcomes.append(outcome)

    def run(self) -> None:
        """Call the functions of the attempts in progress."""
        while self._run and (found := self.open()):
            for call in found:
                try:
                    value = self._call(call)
                    self.answer(call, value)
                except Exception as error:  # noqa: BLE001  a function may raise anything
                    self.fail(call, error)

    def _call(self, call: OpenCall) -> Any:
        options = self._about.calls[call.name].options
        if not options.is_async:
            return options.function(call.id, call.argument)
        return process_loop().run(options.function(call.id, call.argument))

    def has(self, call: OpenCall) -> bool:
        return call.id in self._jobs

    def _end(self, outcome: CallOutcome) -> None:
        self._jobs.pop(outcome.id, None)
        self._outcomes.append(outcome)
