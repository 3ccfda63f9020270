"""One partition of a `Driver`: what the manager thread would do for it, done by the caller."""

from __future__ import annotations

from itertools import islice

from statehold.balancer.assignment import Track
from statehold.errors import UsageError
from statehold.ports import WorkerReport
from statehold.testing.clock import ManualClock
from statehold.testing.log import MemoryLog
from statehold.testing.stepped import SteppedWorker, ToolsOf
from statehold.worker.common.lifecycle import Phase
from statehold.worker.handler.engine import Engine
from statehold.worker.loop import LiveLoop

#: more steps than any legal run of a partition takes without new records
_STEPS = 10_000


class Lane:
    """Hands records over and moves the worker until it rests; its failures are raised here."""

    def __init__(self, tools: ToolsOf, clock: ManualClock, log: MemoryLog, batch: int) -> None:
        self.input, self.partition = log, log.partition
        self._tools, self._clock, self._batch = tools, clock, batch
        self._worker: SteppedWorker | None = None
        self._track: Track | None = None

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

    def engine(self) -> Engine:
        """Return the live engine, or one with a restored copy of the committed state if the partition has failed."""
        return self.worker.engine or self.worker.view()

    # The manager's part

    def start(self) -> None:
        """Take the partition over: fence, restore, replay, go live, and handle the unread records."""
        self._worker = SteppedWorker(self._tools(self.partition), self._clock)
        self._track = Track(self._worker)
        self.run()
        self.deliver(flush=True)

    def report(self, report: WorkerReport) -> None:
        if report.kind == "live" and self._track is not None:
            self._track.go_live(report.position, report.stream, report.topic_id)

    def deliver(self, *, flush: bool) -> None:
        """Hand over what is unread in batches; a last, smaller one only with `flush`."""
        track = self._track
        while track is not None and self.live() is not None:
            messages = list(islice(self.input.committed(track.next), self._batch))
            if not messages or (len(messages) < self._batch and not flush):
                return
            track.hand_over(messages)
            self.run()

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
