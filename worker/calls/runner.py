"""Makes the calls of one partition on the event loop of the process, each until it is answered or has failed."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from statehold.errors import CallRejected, text_of
from statehold.messages.call_outcome import CallJob, CallOutcome
from statehold.worker.calls import attempts
from statehold.worker.calls.attempts import Lane
from statehold.worker.calls.event_loop import AttemptLimit, CallLoop, process_loop
from statehold.worker.calls.gates import Gate
from statehold.worker.common.context import CallFunction, CallSetting


class CallRunner:
    """The partition's thread calls the public methods of `Calls`; everything else runs on the loop's thread."""

    def __init__(self, about: CallSetting, loop: CallLoop | None = None) -> None:
        self._about = about
        self._loop: CallLoop | None = loop
        self._joined = False
        #: ended calls, which the partition's thread takes
        self._outcomes: deque[CallOutcome] = deque()
        self._closing = False
        #: set when no attempt is in progress after `close`
        self._quiet = threading.Event()
        # On the loop's thread only:
        #: calls that have not ended, by id
        self._jobs: dict[str, CallJob] = {}
        #: attempts so far of those that failed
        self._failed: dict[str, int] = {}
        #: for calls in the order of a key: the calls behind the one that runs
        self._lanes: dict[Lane, deque[CallJob]] = {}
        #: calls whose next attempt may begin
        self._ready: dict[bool, deque[CallJob]] = {False: deque(), True: deque()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: attempts that have ended without their functions
        self._abandoned: set[asyncio.Task[None]] = set()
        #: by stored name of the `Call`
        self._gates: dict[str, Gate] = {}
        self._waits: dict[str, asyncio.TimerHandle] = {}

    # The partition's thread

    def submit(self, jobs: Sequence[CallJob]) -> None:
        if self._closing:
            return
        if self._loop is None:
            self._loop = process_loop()
        if not self._joined:
            self._joined = True
            self._loop.soon(self._loop.join, self, self._about.settings.in_flight, self._about.settings.threads)
        self._loop.soon(self._enter, jobs)

    def drop(self, ids: Sequence[str]) -> None:
        if self._loop is not None:
            self._loop.soon(self._drop, ids)

    def finished(self) -> list[CallOutcome]:
        found = []
        while self._outcomes:  # until it is empty, because only the first one behind that wakes the thread
            found.append(self._outcomes.popleft())
        return found

    def close(self, timeout: float) -> None:
        loop, self._closing = self._loop, True
        if loop is None or not self._joined:
            return
        loop.soon(self._stop)
        if timeout > 0:
            self._quiet.wait(timeout)
        loop.soon(self._cancel)

    def outages(self) -> tuple[str, ...]:
        return tuple(name for name, gate in list(self._gates.items()) if gate.down)

    def blocked(self) -> str:
        """Return where a function blocks the event loop; '' if none does."""
        return self._loop.blocked() if self._loop is not None else ""

    # The loop's thread

    def _enter(self, jobs: Sequence[CallJob]) -> None:
        if self._closing:
            return
        for job in jobs:
            if job.id in self._jobs:
                continue
            self._jobs[job.id] = job
            lane = self._lane(job)
            if lane is not None:
                if lane in self._lanes:
                    self._lanes[lane].append(job)
                    continue
                self._lanes[lane] = deque()
            self._offer(job)
        assert self._loop is not None
        self._loop.pump()

    def _lane(self, job: CallJob) -> Lane | None:
        return attempts.lane_of(job, self._about.calls[job.call].options)

    def _offer(self, job: CallJob) -> None:
        self._ready[not self._about.calls[job.call].options.is_async].append(job)

    def _gate(self, job: CallJob) -> Gate:
        gate = self._gates.get(job.call)
        if gate is None:
            assert self._loop is not None
            gate = self._gates[job.call] = self._loop.gate(self._about.calls[job.call].options)
        return gate

    def offer(self, job: CallJob) -> bool:
        """Let an attempt begin now; see `gates.Waiting`."""
        if self._closing or job.id not in self._jobs:
            return False
        assert self._loop is not None
        self._offer(job)
        self._loop.soon(self._loop.pump)  # not at once, because this may be within a pump
        return True

    def begin(self, *, plain: bool) -> bool:
        """Begin the next attempt; see `event_loop.Source`."""
        assert self._loop is not None
        ready = self._ready[plain]
        while ready and not self._closing:
            job = ready.popleft()
            if job.id in self._jobs and self._gate(job).admit(self, job):  # otherwise it was dropped, or waits
                self._tasks[job.id] = self._loop.loop.create_task(self._attempt(job))
                return True
        return False

    async def _attempt(self, job: CallJob) -> None:
        assert self._loop is not None
        function, attempt = self._about.calls[job.call], self._failed.get(job.id, 0) + 1
        options, outcome = function.options, None
        failed: BaseException | None = None
        try:
            if self._about.lost():
                return
            value = await self._ask(job, function)
            outcome = attempts.answered(job, function, attempt, value, self._about.largest)
        except asyncio.CancelledError as error:
            failed = error if self._jobs.get(job.id) is job else None  # otherwise it was dropped
        except TimeoutError as error:
            failed = error if text_of(error) else TimeoutError(f"no answer within {options.timeout:g} s")
        except BaseException as error:  # noqa: BLE001  a function may raise anything, and SystemExit would end the loop
            failed = error
        finally:
            task = asyncio.current_task()
            if task in self._abandoned:  # its function has ended at last
                self._abandoned.discard(task)
                self._loop.left()
            else:
                self._over(job, task, outcome, failed)
                self._loop.ended(plain=not options.is_async)

    def _over(
        self, job: CallJob, task: asyncio.Task[Any] | None, outcome: CallOutcome | None, failed: BaseException | None
    ) -> None:
        """An attempt has ended: with an outcome, an error, or neither of them if it was dropped."""
        if self._tasks.get(job.id) is task:
            del self._tasks[job.id]
        self._note(job, outcome, failed)
        if outcome is not None:
            self._end(outcome)
        elif failed is not None:
            self._retry(job, self._failed.get(job.id, 0) + 1, failed)
        if self._closing and not self._tasks:
            self._quiet.set()

    def cancel(self, job: CallJob, task: asyncio.Task[None]) -> None:
        """Cancel an attempt, and end it later if its function catches that; see `event_loop.Source`."""
        task.cancel()
        assert self._loop is not None
        if self._about.calls[job.call].options.is_async:  # any other function does not hold up the task
            self._loop.loop.call_later(self._loop.patience, self._abandon, job, task)

    def _abandon(self, job: CallJob, task: asyncio.Task[None]) -> None:
        if task.done() or task in self._abandoned:
            return
        self._abandoned.add(task)
        timeout = self._about.calls[job.call].options.timeout
        text = f"no answer within {timeout:g} s, and the function does not end when it is cancelled"
        self._over(job, task, None, TimeoutError(text) if self._jobs.get(job.id) is job else None)
        assert self._loop is not None
        self._loop.abandoned()

    def _note(self, job: CallJob, outcome: CallOutcome | None, failed: BaseException | None) -> None:
        """Pass the end of an attempt to the gate, and report an outage once."""
        gate = self._gate(job)
        answered = (
            True if outcome is not None or isinstance(failed, CallRejected) else None if failed is None else False
        )
        if gate.ended(job, answered=answered):
            self._about.outage(job.call, attempts.stored_text(failed) if failed is not None and gate.down else "")

    async def _ask(self, job: CallJob, function: CallFunction) -> Any:
        """Call the function within its time. Raises what it raises, and TimeoutError."""
        assert self._loop is not None
        options, argument = function.options, function.argument.decode(job.argument)
        limit = AttemptLimit(self, job)
        limited = self._loop.limits.add(self._loop.loop, limit, options.timeout)
        try:
            if options.is_async:
                return await options.function(job.id, argument)
            value = await self._loop.on_thread(options.function, job.id, argument)
        except asyncio.CancelledError as error:
            if limit.ended_it():
                raise TimeoutError from error
            raise
        finally:
            limited.discard(limit)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()  # it was never awaited, which Python would report
            raise TypeError("the function is no `async def`, and returned what is to be awaited")
        return value

    def _retry(self, job: CallJob, attempt: int, error: BaseException) -> None:
        wait = attempts.wait_after(self._about.calls[job.call].options, attempt, error, random.uniform(0.5, 1.0))
        if wait is None or not self._gate(job).down:  # an outage is reported once
            self._about.report(job, error, attempt, wait is None)
        if wait is None:
            self._end(attempts.failure(job, attempt, error))
        elif not self._closing:
            assert self._loop is not None
            self._failed[job.id] = attempt
            self._waits[job.id] = self._loop.loop.call_later(wait, self._again, job)

    def _again(self, job: CallJob) -> None:
        assert self._loop is not None
        self._waits.pop(job.id, None)
        self._offer(job)
        self._loop.pump()

    def _end(self, outcome: CallOutcome) -> None:
        job = self._jobs.pop(outcome.id, None)
        if job is None:
            return
        self._failed.pop(job.id, None)
        self._outcomes.append(outcome)
        if len(self._outcomes) == 1:
            self._about.wake()
        self._advance(job)

    def _advance(self, job: CallJob) -> None:
        """Let the next call of the key run."""
        lane = self._lane(job)
        if lane is None:
            return
        waiting = self._lanes[lane]
        while waiting:
            following = waiting.popleft()
            if following.id in self._jobs:
                self._offer(following)
                return
        del self._lanes[lane]

    def _drop(self, ids: Sequence[str]) -> None:
        for each in ids:
            job = self._jobs.pop(each, None)
            if job is None:
                continue
            self._failed.pop(each, None)
            task, wait = self._tasks.get(each), self._waits.pop(each, None)
            if task is not None:
                self.cancel(job, task)
            if wait is not None:
                wait.cancel()
            lane = self._lane(job)
            if lane is None or job not in self._lanes.get(lane, ()):
                self._advance(job)
        assert self._loop is not None
        self._loop.pump()

    def _stop(self) -> None:
        for wait in self._waits.values():
            wait.cancel()
        self._waits.clear()
        if not self._tasks:
            self._quiet.set()

    def _cancel(self) -> None:
        self._stop()
        for name, task in self._tasks.items():
            if name in self._jobs:  # otherwise it was dropped, and cancelled then
                self.cancel(self._jobs[name], task)
        self._jobs.clear()
        assert self._loop is not None
        self._loop.leave(self)
