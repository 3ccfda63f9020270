"""Runs the threads of simulated processes as tasks, one at a time, in virtual time."""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Final

from greenlet import getcurrent, greenlet

from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.kafka.faults import CallFault, PortCall, ProcessCrashed
from statehold.testing.memory.clock import ManualClock
from statehold.testing.simulation.schedule import Intervention, Occurrence, Schedule

#: seconds that a request takes at least, and what chance adds at most
_REQUEST: Final = 0.0003, 0.02
#: the part of a consumer's polls at which other threads run first; most polls wait for records anyway
_POLLS: Final = 0.25
#: seconds until a thread runs after something has woken it
_WAKE: Final = 0.00002, 0.002
_GOLDEN: Final = 0x9E3779B1
_UNIT: Final = 2.0**-32


class Stalled(Exception):
    """Something stands still for longer than the schedule explains, or nothing will happen any more."""


class TaskHost:
    """What a task belongs to: a process that can stand still or crash; all of its tasks do."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: virtual time until which it stands still
        self.frozen_until = 0.0
        self.crashed = False
        self.tasks: list[Task] = []


class Task:
    """One thread of a simulated process."""

    __slots__ = ("delays", "ended", "ending", "greenlet", "host", "label", "name", "ready", "seed", "token", "woken")

    def __init__(self, host: TaskHost, name: str, seed: int) -> None:
        self.host, self.label, self.name = host, name, f"{host.name}.{name}"
        self.seed = zlib.crc32(self.name.encode(), seed)
        self.greenlet: greenlet | None = None
        self.ready: Callable[[], bool] | None = None
        #: counts its waits, so that an earlier wake-up of an ended wait does nothing
        self.token = 0
        self.woken = False
        self.delays = 0
        self.ended = False
        self.ending: list[Task] = []

    def chance(self) -> float:
        """Return the next number of 0 to 1. It depends on the seed, the task and how many it has had."""
        self.delays += 1
        mixed = ((self.seed ^ (self.delays * _GOLDEN)) * 0x85EBCA6B) & 0xFFFFFFFF
        mixed ^= mixed >> 13
        return ((mixed * 0xC2B2AE35) & 0xFFFFFFFF) * _UNIT


class TaskScheduler:
    """`kafka.faults.Scheduler`: the loop that runs the tasks. Same schedule, same run."""

    def __init__(self, clock: ManualClock, schedule: Schedule) -> None:
        self.clock, self.schedule = clock, schedule
        self.kafka: SimulatedKafka | None = None
        self.current: Task | None = None
        #: switches to a task so far
        self.steps = 0
        #: what the schedule did, in order
        self.taken: list[Occurrence] = []
        #: called with the host, the action and the place, when an action concerns a whole process
        self.on_action: Callable[[TaskHost, Intervention], None] = lambda host, action: None
        #: called when the schedule does something at a place of a task
        self.on_taken: Callable[[Task, Intervention], None] = lambda task, action: None
        #: called before each call of a client
        self.on_point: Callable[[Task, str], None] = lambda task, name: None
        #: raised out of `run` at once
        self.failure: BaseException | None = None
        #: notes each place that the run reaches, with its kind, if there is a list
        self.reached: list[tuple[str, str]] | None = None
        self._counts: Counter[str] = Counter()
        self._heap: list[tuple[float, int, int, Task]] = []
        self._polling: list[Task] = []
        self._numbers = count()
        self._hub = getcurrent()
        self.closing = False

    # For tasks

    def spawn(self, host: TaskHost, name: str, run: Callable[[], None]) -> Task:
        """Make a task that begins to run soon."""
        task = Task(host, name, self.schedule.order)
        task.greenlet = greenlet(lambda: self._body(task, run), self._hub)
        host.tasks.append(task)
        self.wake(task)
        return task

    def _body(self, task: Task, run: Callable[[], None]) -> None:
        try:
            run()
        except ProcessCrashed:
            pass
        except BaseException as error:  # noqa: BLE001  an uncaught error ends the simulation
            if not self.closing:
                self.failure = self.failure or error
        finally:
            task.ended = True
            if not self.closing:
                task.host.tasks.remove(task)
                for waiting in task.ending:
                    self.wake(waiting)

    def park(self, until: float) -> None:
        """Let the current task stand still until `wake`, or until this time.

        :raises ProcessCrashed: the simulation ends.
        """
        task = self.current
        if self.closing or task is None:
            raise ProcessCrashed("the simulation has ended")
        task.token += 1
        if until < math.inf:
            heapq.heappush(self._heap, (until, next(self._numbers), task.token, task))
        self._hub.switch()
        if self.closing:
            raise ProcessCrashed("the simulation has ended")

    def sleep(self, seconds: float) -> None:
        self.park(self.clock() + seconds)

    def wake(self, task: Task) -> None:
        """Let a task continue soon."""
        if task.woken:
            return
        least, more = _WAKE
        task.woken = True
        task.token += 1
        when = self.clock() + least + more * task.chance() ** 6
        heapq.heappush(self._heap, (when, next(self._numbers), task.token, task))

    def yield_now(self) -> None:
        """Let others run for a moment, as between two instructions of a thread."""
        task = self.current
        if task is not None and not self.closing:
            self.sleep(_WAKE[0] + _WAKE[1] * task.chance() ** 6)

    # For the simulated clients

    def wait(self, ready: Callable[[], bool], until: float) -> None:
        task = self.current
        if task is None:
            raise Stalled("a call that would wait was made outside of a task")
        if ready():
            return
        task.ready = ready
        self._polling.append(task)
        try:
            self.park(until)
        finally:
            task.ready = None
            self._polling.remove(task)

    def point(self, call: PortCall) -> CallFault | None:
        task = self.current
        if call.background or task is None:
            return self._background(call)
        self.on_point(task, call.name)
        action = self.act(task, call.name)
        if action is None and call.name == "consume" and task.chance() > _POLLS:
            return None
        least, more = _REQUEST
        self.sleep(least + more * task.chance() ** 4)
        return action.fault(call) if action is not None else None

    def reach(self, name: str) -> Intervention | None:
        """Let the current task be at a place of its run that has this name: others run, and something may happen."""
        task = self.current
        if task is None or self.closing:
            return None
        self.on_point(task, name)
        action = self.act(task, name)
        least, more = _REQUEST
        slow = action.seconds if action is not None and action.kind == "slow" else 0.0
        self.sleep(least + more * task.chance() ** 4 + slow)
        return action

    def act(self, task: Task, name: str) -> Intervention | None:
        """Count a place in the run, do what the schedule says there to the process, and return it."""
        action = self._next(f"{task.name}.{name}", name)
        if action is not None:
            self.on_taken(task, action)
        if action is not None and action.of_process:
            self.on_action(task.host, action)
            self.yield_now()  # it does not come back from a crash, and late from a halt
        return action

    def _background(self, call: PortCall) -> CallFault | None:
        action = self._next(f"{call.process}.{call.name}", "background")
        return action.fault(call) if action is not None and not action.of_process else None

    def _next(self, place: str, kind: str) -> Intervention | None:
        number = self._counts[place] = self._counts[place] + 1
        if self.reached is not None and kind != "background" and not self.schedule.quiet:
            self.reached.append((f"{place}#{number}", kind))
        action = self.schedule.action(place, number, kind)
        if action is not None:
            self.taken.append(Occurrence(self.clock(), f"{place}#{number}", action))
        return action

    # The loop

    def run(self, done: Callable[[], bool], limit: float) -> None:
        """Run tasks and the brokers until `done()`.

        :raises Stalled: it did not become true by `limit` seconds of virtual time.
        """
        kafka, clock = self.kafka, self.clock
        assert kafka is not None
        while not done():
            if self.failure is not None:
                raise self.failure
            when, task = self._next_step(kafka)
            if when > limit:
                raise Stalled(f"not done after {limit:.0f} s of virtual time")
            if when > clock():
                clock.advance(when - clock())
            if task is None:
                kafka.turn()
            else:
                self._switch(task)
            if self._polling:
                self._poll()

    def _next_step(self, kafka: SimulatedKafka) -> tuple[float, Task | None]:
        """Return when the next step is due, and the task that does it; None: the brokers do.

        :raises Stalled: no step is due at any time.
        """
        heap, event = self._heap, kafka.next_event()
        while heap and (event is None or heap[0][0] < event):
            when, _, token, task = heapq.heappop(heap)
            if token != task.token or task.ended or task.host.crashed:
                continue
            if task.host.frozen_until <= when:
                return when, task
            heapq.heappush(heap, (task.host.frozen_until, next(self._numbers), token, task))
        if event is None:
            raise Stalled("nothing will happen any more")
        return event, None

    def _switch(self, task: Task) -> None:
        self.steps += 1
        self.current, task.woken = task, False
        assert task.greenlet is not None
        try:
            task.greenlet.switch()
        finally:
            self.current = None

    def _poll(self) -> None:
        for task in self._polling:
            ready = task.ready
            if ready is not None and not task.host.crashed and ready():
                task.ready = None
                self.wake(task)

    def close(self, hosts: list[TaskHost]) -> None:
        """End what is left of all tasks."""
        self.closing = True
        for host in hosts:
            for task in [*host.tasks]:
                if task.greenlet is not None and not task.greenlet.dead:
                    if task.greenlet:  # started
                        self.current = task
                        task.greenlet.throw(ProcessCrashed("the simulation has ended"))
                    self.current = None
                task.greenlet = None
            host.tasks.clear()
        self._heap.clear()
        self._polling.clear()


class TaskEvent:
    """`common.threads.ThreadEvent` for tasks."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self._flag = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        for task in self._waiting:
            self._scheduler.wake(task)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current
        if self._flag or task is None or (timeout is not None and timeout <= 0):
            return self._flag
        self._waiting.append(task)
        try:
            self._scheduler.park(math.inf if timeout is None else self._scheduler.clock() + timeout)
        finally:
            self._waiting.remove(task)
        return self._flag


class TaskCondition:
    """`common.threads.ThreadCondition` for tasks. Nothing waits inside of it but `wait`, so it needs no lock."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self._inside = 0
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        if self._inside == 0:
            self._scheduler.yield_now()
        self._inside += 1
        return True

    def __exit__(self, *_: object) -> None:
        self._inside -= 1

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current
        if task is None or (timeout is not None and timeout <= 0):
            return False
        inside, self._inside = self._inside, 0
        self._waiting.append(task)
        try:
            self._scheduler.park(math.inf if timeout is None else self._scheduler.clock() + timeout)
        finally:
            self._inside = inside
            if task in self._waiting:
                self._waiting.remove(task)
        return True

    def notify(self) -> None:
        if self._waiting:
            self._scheduler.wake(self._waiting.pop(0))


class TaskQueue:
    """`common.threads.ThreadQueue` for tasks."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._items: deque[object] = deque()
        self._filled = TaskEvent(scheduler)

    def put(self, item: object) -> None:
        self._items.append(item)
        self._filled.set()

    def get(self) -> object:
        while not self._items:
            self._filled.clear()
            self._filled.wait()
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class TaskThread:
    """`common.threads.Thread` for tasks."""

    def __init__(self, scheduler: TaskScheduler, host: TaskHost, run: Callable[[], None], name: str) -> None:
        self._scheduler, self._host, self._run, self._name = scheduler, host, run, name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._host, self._name, self._run)

    def join(self, timeout: float | None = None) -> None:
        task, scheduler = self._task, self._scheduler
        if task is None or task.ended or (timeout is not None and timeout <= 0) or scheduler.current is None:
            return
        task.ending.append(scheduler.current)
        try:
            scheduler.park(math.inf if timeout is None else scheduler.clock() + timeout)
        finally:
            task.ending.remove(scheduler.current)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended


class TaskThreads:
    """`common.threads.Threads`: the threads of one simulated process."""

    def __init__(self, scheduler: TaskScheduler, host: TaskHost) -> None:
        self._scheduler, self._host = scheduler, host

    def event(self) -> TaskEvent:
        return TaskEvent(self._scheduler)

    def condition(self) -> TaskCondition:
        return TaskCondition(self._scheduler)

    def queue(self) -> TaskQueue:
        return TaskQueue(self._scheduler)

    def thread(self, run: Callable[[], None], name: str) -> TaskThread:
        return TaskThread(self._scheduler, self._host, run, name)

    short_thread = thread

    def processor_time(self) -> float:
        return 0.0
