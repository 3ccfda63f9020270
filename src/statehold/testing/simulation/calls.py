"""The calls of one partition of a simulated process: attempts are tasks, and anything may happen around each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, cast

from statehold.errors import UsageError
from statehold.messages.call_outcome import CallJob
from statehold.testing.memory.calls import HeldCalls
from statehold.testing.simulation.schedule import Intervention
from statehold.testing.simulation.scheduler import TaskThreads
from statehold.worker.calls import attempts
from statehold.worker.common.context import CallFunction, CallSetting

#: attempts at a time
_TASKS: Final = 3


class SimulatedCalls(HeldCalls):
    """Implements `Calls`. A schedule may act before an attempt (`call`), and between its answer and the partition."""

    def __init__(
        self, about: CallSetting, threads: TaskThreads, reach: Callable[[str], Intervention | None], name: str
    ) -> None:
        super().__init__(about)
        self._threads, self._reach, self._name = threads, reach, name
        self._ready, self._closing = threads.queue(), threads.event()
        self._begun = False
        self._lanes: dict[attempts.Lane, deque[CallJob]] = {}

    def submit(self, jobs: Sequence[CallJob]) -> None:
        if self._closing.is_set():
            return
        if not self._begun:
            self._begun = True
            for number in range(_TASKS):
                self._threads.thread(self._run, f"calls-{self._name}.{number}").start()
        for job in jobs:
            if job.id in self._jobs:
                continue
            self._jobs[job.id] = job
            lane = self._lane(job)
            if lane is None:
                self._ready.put(job)
            elif lane in self._lanes:
                self._lanes[lane].append(job)
            else:
                self._lanes[lane] = deque()
                self._ready.put(job)

    def close(self, timeout: float) -> None:
        self._closing.set()
        for _ in range(_TASKS):
            self._ready.put(None)

    def _run(self) -> None:
        while not self._closing.is_set():
            job = cast("CallJob | None", self._ready.get())
            if job is None:
                return
            while job.id in self._jobs and self._attempt(job):
                pass
            self._advance(job)

    def _advance(self, job: CallJob) -> None:
        """Let the next call of the key run."""
        if (lane := self._lane(job)) is None:
            return
        if waiting := self._lanes.get(lane):
            self._ready.put(waiting.popleft())
        else:
            self._lanes.pop(lane, None)

    def _attempt(self, job: CallJob) -> bool:
        """Return whether another attempt follows."""
        function, attempt = self._about.calls[job.call], self._failed.get(job.id, 0) + 1
        options = function.options
        try:
            action = self._reach("call")
            if self._about.lost() or self._closing.is_set():
                return False
            value, twice = self._ask(job, function, action)
            outcome = attempts.answered(job, function, attempt, value, self._about.largest)
        except Exception as error:  # noqa: BLE001  a function may raise anything
            wait = attempts.wait_after(options, attempt, error, 1.0)
            if wait is not None:
                self._failed[job.id] = attempt
                return not self._closing.wait(wait)
            outcome, twice = attempts.failure(job, attempt, error), False
        self._jobs.pop(job.id, None)
        self._outcomes += [outcome, outcome] if twice else [outcome]
        self._about.wake()
        return False

    def _ask(self, job: CallJob, function: CallFunction, before: Intervention | None) -> tuple[Any, bool]:
        """Return the answer, and whether it is duplicated. Raises what the function raises, or the schedule's error."""
        if before is not None and before.kind == "fail":
            raise ConnectionError("down")
        value = function.options.function(job.id, function.argument.decode(job.argument))
        if function.options.is_async:
            value = result_of(value)
        after = self._reach("answer")
        if after is not None and after.kind == "fail":
            raise TimeoutError("the answer was lost")
        return value, after is not None and after.kind == "twice"


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run an `async def` that waits for nothing. :raises UsageError: it waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise UsageError("a simulation has no event loop: let the function of a Call or an effect wait for nothing there")


def ended(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run the `async def` of an effect. Raises what it raises, and as `result_of`."""
    future = Future[Any]()
    future.set_result(result_of(coroutine))
    return future


def simulated(
    threads: TaskThreads, reach: Callable[[str], Intervention | None], partition: int
) -> Callable[[CallSetting], SimulatedCalls]:
    """Return what creates the runner of a partition's calls."""
    return partial(_made, threads, reach, f"{partition}")


def _made(
    threads: TaskThreads, reach: Callable[[str], Intervention | None], name: str, about: CallSetting
) -> SimulatedCalls:
    return SimulatedCalls(about, threads, reach, name)
