"""The live loop of one partition: take records, handle them, commit; `plan.decide` says which comes next."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import missing_records
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.mailbox import Mailbox
from statehold.worker.common.signals import Signals
from statehold.worker.full_snapshots.scheduler import FullSnapshots
from statehold.worker.handler.engine import Engine
from statehold.worker.transaction.pipeline import TransactionPipeline
from statehold.worker.transaction.plan import Step, View, decide

#: seconds to wait for records while idle, and while a full snapshot is being taken
_IDLE = 1.0
_BUSY_IDLE = 0.01
#: least wait while records wait for side effects: a rest that rounds to nothing would come again and again
_LEAST = 0.001
#: seconds between two looks for commands while the partition is paused
_PAUSED = 0.1


class LiveLoop:
    """Used by the partition's thread. Its memory survives a replaced producer (rule T4).

    Every method may raise PartitionError (the partition fails) and ProducerDropped (fence, then `pipeline.resume`).
    """

    def __init__(
        self,
        tools: Tools,
        signals: Signals,
        mailbox: Mailbox,
        engine: Engine,
        pipeline: TransactionPipeline,
        full_snapshots: FullSnapshots,
    ) -> None:
        self._tools, self._signals, self._mailbox = tools, signals, mailbox
        self.engine, self.pipeline, self.full_snapshots = engine, pipeline, full_snapshots
        self.transaction, self.participants = pipeline.state, pipeline.participants

    @property
    def record(self) -> CommitRecord:
        """The last commit record. Any thread."""
        return self.transaction.kafka.record

    @property
    def uncommitted(self) -> bool:
        """Records were handled, or rolled back, and are not committed."""
        transaction = self.transaction
        rolled_back = transaction.kafka.position < transaction.reached
        return rolled_back or transaction.policy.since is not None or transaction.commit is not None

    def run(self) -> Event:
        """Work until the partition is revoked or lost."""
        while True:
            if self._signals.any.is_set():
                if (event := self._signals.event()) in (Event.LOST, Event.REVOKED):
                    return event
                self._signals.raise_failure()
            self.turn()

    def turn(self) -> None:
        """One step; waits for records at most until a commit is due."""
        room = self.transaction.policy.room()
        match decide(self.view(room)):
            case Step.SETTLE:
                self.pipeline.settle()
            case Step.COMMIT:
                self.pipeline.commit()
            case Step.BEGIN_COMMIT:
                self.pipeline.begin_commit()
            case Step.HANDLE:
                self._handle(room)
            case Step.TAKE:
                self._take(room)
            case Step.FACE_FAILURE:
                # Everything before the record is committed: retry it, dead-letter it, or fail the partition.
                buffer = self.transaction.buffer
                message = buffer.todo[0][0] if buffer.todo else None
                self.pipeline.decisions().face(buffer.failure, message, self.transaction.kafka.record)
                buffer.retry()
            case Step.THROTTLE:
                wait = self.transaction.policy.wait(self._tools.clock(), _BUSY_IDLE)
                self._signals.pause(min(max(wait, _LEAST), _BUSY_IDLE))
                self._rest()
            case Step.PAUSED:
                self._signals.any.wait(_PAUSED)
                self._rest()

    def view(self, room: int) -> View:
        """Return all facts that the next step depends on; `room` is what `CommitPolicy.room` returns."""
        transaction, buffer, policy = self.transaction, self.transaction.buffer, self.transaction.policy
        record, commit = transaction.kafka.record, transaction.commit
        now, is_open = self._tools.clock(), policy.since is not None
        stops_early = buffer.barrier is not None or buffer.failure is not None
        first = buffer.side_inputs_first and not stops_early
        return View(
            mode=buffer.mode(),
            paused=record.paused is not None,
            open=is_open,
            due=is_open and policy.due(now),
            full=room == 0,
            in_flight=commit is not None,
            landed=commit is not None and commit.call.ended(),
            waiting=bool(buffer.todo),
            reached=stops_early and buffer.reached(transaction.position),
            arrived=self._mailbox.depth > 0,
            blocked=bool(self.participants.on_blocks) and self.participants.blocked(),
            side_inputs_first=first and self.participants.want_commit(record, now),
        )

    def _handle(self, room: int) -> None:
        if messages := self.transaction.buffer.next(room):
            self.pipeline.handle(messages)
            if self.full_snapshots.active:
                self.full_snapshots.between(self.transaction.kafka.record)

    def _take(self, room: int) -> None:
        policy, buffer = self.transaction.policy, self.transaction.buffer
        began = self._tools.clock()
        wait = policy.wait(began, _BUSY_IDLE if self.full_snapshots.active else _IDLE)
        batch = self._mailbox.take(room, wait)
        policy.waited(self._tools.clock() - began, records=batch is not None)
        if batch is None:
            self._rest()
        elif batch.previous > buffer.taken:
            raise missing_records(self._tools.place, buffer.taken, batch.previous)
        else:
            buffer.add(batch.messages)

    def _rest(self) -> None:
        """Without records: commit on request of participants, advance a full snapshot, keep the producer id alive."""
        if self.transaction.policy.since is not None or not self.pipeline.settle():
            return
        self.transaction.kafka.producer.deliver_log()
        now, record = self._tools.clock(), self.record
        due = self.transaction.buffer.barrier is None and self.participants.want_commit(record, now)
        if due or self.transaction.policy.renewal_due(now):
            self.pipeline.commit()
        else:
            self.full_snapshots.boundary(record)

    def close(self) -> None:
        """Close the participants, then call the handler's hook; commit nothing."""
        self.engine.on_first_effect = None
        try:
            self.participants.close()
        finally:
            self.engine.call_hook("on_stop")
