"""One partition of a `Driver`: what the manager thread would do for it, done by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from statehold.api.record import Message
from statehold.errors import UsageError
from statehold.ports import InputReceiver, WorkerReport
from statehold.testing.memory.clock import ManualClock
from statehold.testing.memory.log import MemoryLog
from statehold.testing.stepped import SteppedWorker, ToolsOf
from statehold.worker.calls.participant import DurableCalls
from statehold.worker.common.lifecycle import Phase
from statehold.worker.handler.engine import Engine
from statehold.worker.loop import LiveLoop

#: more steps than any legal run of a partition takes without new records
_STEPS = 10_000


class LaneReading:
    """`ports.InputReading`: hands over what is unread of several inputs."""

    def __init__(self, logs: Sequence[MemoryLog], positions: Mapping[str, int], receiver: InputReceiver) -> None:
        self._logs, self._receiver, self._next = logs, receiver, [positions[log.topic] for log in logs]
        self._at_end = [False] * len(logs)

    def deliver(self, batch: int, *, flush: bool) -> bool:
        """Hand over up to `batch` records of each input; return whether there was something new."""
        ends = (log.end - at for log, at in zip(self._logs, self._next, strict=True))
        if not flush and all(self._at_end) and sum(ends) < batch:
            return False  # without a look at each record, because `feed` asks after each
        found = [list(islice(log.committed(at), batch)) for log, at in zip(self._logs, self._next, strict=True)]
        unread = sum(map(len, found))
        if (unread == 0 or (unread < batch and not flush)) and all(self._at_end):
            return False
        for index, messages in enumerate(found):
            if messages:
                self._receiver.add(index, messages)
                self._next[index] = (messages[-1].offset() or 0) + 1
            self._at_end[index] = next(self._logs[index].committed(self._next[index]), None) is None
            if self._at_end[index]:
                self._receiver.end(index)
        return True

    @property
    def unread(self) -> bool:
        """Whether an input has a record that was not handed over."""
        return any(log.has(at) for log, at in zip(self._logs, self._next, strict=True))

    def close(self) -> None:
        """Nothing is open."""


class Lane:
    """Hands records over and moves the worker until it rests; its failures are raised here."""

    def __init__(self, tools: ToolsOf, clock: ManualClock, logs: Sequence[MemoryLog], batch: int) -> None:
        """`logs`: this partition of each input."""
        self.inputs, self.partition = logs, logs[0].partition
        self._reading: LaneReading | None = None
        self._tools, self._clock, self._batch = tools, clock, batch
        self._worker: SteppedWorker | None = None
        #: of the live partition: the stream and the offset of the next record to hand over; None before
        self.stream = -1
        self.next: int | None = None

    @property
    def worker(self) -> SteppedWorker:
        """:raises UsageError: it has crashed or was stopped."""
        if self._worker is None:
            raise UsageError(f"partition {self.partition} is not running: call restore() first")
        return self._worker

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.phase is not Phase.FAILED

    def live(self) -> LiveLoop:
        """:raises UsageError: it is not live."""
        live = self.worker.live
        if live is None:
            raise UsageError(f"partition {self.partition} has failed, restore() tries again: {self.worker.cause}")
        return live

    @property
    def answered(self) -> bool:
        """Whether the partition would take answers of durable calls."""
        live, now = self.live(), self._clock()
        calls = (each for each in live.participants.members if isinstance(each, DurableCalls))
        return any(each.wants_commit(live.record, now) for each in calls)

    @property
    def unread(self) -> bool:
        """Whether one of several inputs has a record that the partition does not have yet."""
        return self._reading is not None and self._reading.unread

    def engine(self) -> Engine:
        """Return the live engine, or one with a restored copy of the committed state if the partition has failed."""
        return self.worker.engine or self.worker.view()

    # The manager's part

    def start(self) -> None:
        """Take the partition over: fence, restore, replay, go live, and handle the unread records."""
        self._worker = SteppedWorker(self._tools(self.partition), self._clock)
        self.next = None
        self.run()
        self.deliver(flush=True)

    def report(self, report: WorkerReport) -> None:
        if report.kind == "live":
            self.stream, self.next = report.stream, report.position

    def deliver(self, *, flush: bool) -> None:
        """Hand over what is unread in batches; a last, smaller one only with `flush`."""
        while self.live() is not None and self.next is not None:
            if self._reading is not None:
                if not self._reading.deliver(self._batch, flush=flush):
                    return
            elif not flush and self.inputs[0].end - self.next < self._batch:
                return  # as above
            else:
                messages = list(islice(self.inputs[0].committed(self.next), self._batch))
                if not messages or (len(messages) < self._batch and not flush):
                    return
                self.hand_over(messages)
            self.run()

    def hand_over(self, messages: Sequence[Message]) -> None:
        assert self.next is not None
        previous, self.next = self.next, (messages[-1].offset() or 0) + 1
        self.worker.offer(self.stream, previous, messages)

    def read(self, positions: Mapping[str, int], _: Mapping[str, str], receiver: InputReceiver) -> LaneReading:
        """`Tools.inputs`: the records come with `deliver`."""
        self._reading = LaneReading(self.inputs, positions, receiver)
        return self._reading

    def run(self) -> None:
        """Step until nothing is left to do without new records or time. Raises the failure if the partition fails."""
        worker, steps = self.worker, 0
        while worker.moving:
            worker.step()
            steps += 1
            if steps > _STEPS:
                raise RuntimeError(f"partition {self.partition} does not come to rest in phase {worker.phase.value}")
        if worker.phase is Phase.FAILED:
            worker.step()
            assert worker.cause is not None
            raise worker.cause

    def commit(self) -> None:
        """Handle what was fed and commit it; aborted transactions are undone and tried again, as in the worker."""
        self.deliver(flush=True)
        while self.live().uncommitted:
            self.worker.commit()
            self.run()
            self.deliver(flush=True)

    def tick(self) -> None:
        """Run one round without new records: a due commit, a slice of a full snapshot, a renewal."""
        self.deliver(flush=True)
        self.worker.step()
        if self.worker.in_flight:
            self.worker.step()  # no time passes in the driver while a commit is under way
        self.run()

    def crash(self) -> None:
        self.worker.crash()
        self._worker = None

    def stop(self, within: float) -> None:
        """Stop cleanly: drain, take a last full snapshot, close."""
        self.deliver(flush=True)
        worker = self.worker
        worker.revoke(self._clock() + within, final=True)
        while worker.phase is not Phase.CLOSED:
            worker.step()
        self._worker = None
        if worker.cause is not None:
            raise worker.cause
