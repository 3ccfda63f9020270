"""Keep and count the records of uncommitted transactions: which come next, how carefully, and when they commit.

It uses no Kafka and no clock: time is an argument (rules T6, M4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

from statehold.api.record import Message, at, input_of_all
from statehold.config.sections.processing import CommitSettings
from statehold.snapshot.format import runs
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed
from statehold.worker.inputs import turns
from statehold.worker.inputs.turns import Turn
from statehold.worker.transaction.plan import Mode

Messages = Sequence[Message]

#: a partition that has waited for records for less than this share of commit.interval is behind
_RESTS: Final = 0.2
#: intervals that a transaction of such a partition lasts, at most
_LONGER: Final = 2
#: records that are decoded and handled at a time; between two portions a commit may begin, and a signal is seen
_PORTION: Final = 10_000


class RecordBuffer:
    """Keeps each record from the mailbox until it is committed; a rollback returns it to `todo`."""

    def __init__(self, taken: int = 0) -> None:
        #: where the next record from the mailbox follows
        self.taken = taken
        #: records of the open transaction, and of the one whose commit is in flight
        self._kept: list[Messages] = []
        self._closed: list[Messages] = []
        #: records from the mailbox to be handled, or to be handled again
        self.todo: deque[Messages] = deque()
        #: the failure to face once everything before its record is committed
        self.failure: HandlingFailed | None = None
        #: records before this place are handled one by one, to find the one to blame
        self.careful_until = -1
        #: a transaction has to end at this place: the sinks' database has everything before it
        self.barrier: int | None = None
        #: with several inputs: the order of those records
        self.turns: Sequence[Turn] = ()
        #: the sinks' database rejects a row, and its record is being searched
        self.bisecting = False
        #: while `bisecting`: side inputs are handled first, one in a transaction
        self.side_inputs_first = False
        #: event time advances towards the next record in slices, so it is handed over alone
        self.alone = False

    def mode(self) -> Mode:
        """Return how to handle the next records: a failure precedes a barrier, a barrier precedes a bisection."""
        if self.failure is not None:
            return Mode.FAILING
        if self.barrier is not None:
            return Mode.BEHIND
        if self.bisecting:
            return Mode.BISECTING
        careful = self.careful_until > 0 and bool(self.todo) and at(self.todo[0][0]) < self.careful_until
        return Mode.CAREFUL if careful else Mode.NORMAL

    def reached(self, position: int) -> bool:
        """Return whether all records before the failed one, else before the barrier, were handled up to `position`."""
        if self.failure is not None:
            return not self.todo or at(self.todo[0][0]) >= self.failure.at
        if self.barrier is not None:
            return position >= self.barrier or (bool(self.todo) and at(self.todo[0][0]) >= self.barrier)
        return False

    def add(self, messages: Messages) -> None:
        """Take records from the mailbox, except those that it delivered before (rule T6)."""
        end = at(messages[-1]) + 1
        if end > self.taken:
            if at(messages[0]) < self.taken:
                messages = [message for message in messages if at(message) >= self.taken]
            self.todo.append(messages)
            self.taken = end

    def next(self, room: int) -> Messages | None:
        """Return the next records and add them to the open transaction; None if no record may be handled now."""
        if room <= 0 or not self.todo or (self.failure is not None and self.reached(-1)):
            return None
        messages = self.todo.popleft()
        size = min(room, len(messages), _PORTION)
        if self.alone or (self.careful_until > 0 and at(messages[0]) < self.careful_until):
            size = 1
        if self.failure is not None:
            size = min(size, sum(at(message) < self.failure.at for message in messages[:size]))
        if self.barrier is not None:
            size = min(size, sum(at(message) < self.barrier for message in messages[:size]))
        if size < len(messages):
            self.todo.appendleft(messages[size:])
        if size == 0:
            return None
        self._kept.append(messages[:size] if size < len(messages) else messages)
        return self._kept[-1]

    def put_back(self, handled: int) -> None:
        """Requeue the unhandled tail of the last records that `next` returned."""
        if handled >= len(self._kept[-1]):
            return
        messages = self._kept.pop()
        if handled > 0:
            self._kept.append(messages[:handled])
        self.todo.appendleft(messages[handled:])

    # Failures

    def fail_at(self, failure: HandlingFailed) -> None:
        """Note a failed record: the records before it are handled again and committed before its failure is decided."""
        self.careful_until = -1
        self.failure = failure

    def retry(self) -> None:
        """Let the failed record be handled again, alone."""
        failure, self.failure = self.failure, None
        assert failure is not None
        if isinstance(failure, BatchFailed):
            self.careful_until = at(self.todo[0][-1]) + 1
        else:
            self.careful_until = failure.at + 1

    def suspect(self) -> bool:
        """Let all records of the open transaction be handled again one by one, to find the one to blame.

        False: that is how they were handled.
        """
        before = self.careful_until
        last = self.todo[0][0] if self.alone and self.todo else self._kept[-1][-1] if self._kept else None
        self.careful_until = -1 if last is None else at(last) + 1
        return self.careful_until > before

    # Transactions

    def close(self) -> None:
        """Close the open transaction; the next records belong to another one."""
        self._closed, self._kept = self._kept, []

    def reach(self, before: CommitRecord, position: int) -> tuple[dict[str, int], bytes]:
        """Return the next offset of each of several inputs after the open transaction, and the order of its records.

        `before`: the commit record before it. `position`: the partition's position after it.
        """
        kept: list[Any] = self._kept
        positions = {topic: before.positions[topic] for topic in before.inputs}
        left = set(before.inputs)
        newest = (each[-1:] if input_of_all(each) is not None else reversed(each) for each in reversed(kept))
        for message in chain.from_iterable(newest):
            topic = before.inputs[message.input]
            if topic in left:
                left.discard(topic)
                positions[topic] = (message.offset() or 0) + 1
                if not left:
                    break
        reached = sum(positions.values())
        assert reached == position, f"the inputs' positions {positions} add up to {reached}, not to {position}"
        return positions, runs.pack(runs.of(kept))

    def order(self, before: CommitRecord) -> tuple[list[int], bytes]:
        """Return the next offset of each of several inputs before the open transaction, and its `turns`, packed."""
        positions = [before.positions[topic] for topic in before.inputs]
        records: list[Any] = list(chain.from_iterable(self._kept))
        return positions, turns.pack(records, positions)

    def committed(self) -> None:
        """The closed transaction has committed."""
        self._closed = []

    def roll_back(self) -> int:
        """Requeue all uncommitted records; return their number."""
        again = list(chain(self._closed, self._kept))
        self.alone = False
        self.todo.extendleft(reversed(again))
        self._closed, self._kept = [], []
        return sum(map(len, again))


@dataclass(slots=True, weakref_slot=True, eq=False)
class CommitPolicy:
    """Counts the records of the open transaction. All times are monotonic seconds."""

    settings: CommitSettings
    #: those of all partitions of the process whose transaction is open
    open: WeakSet[object] = field(default_factory=WeakSet)
    records: int = 0
    #: when the open transaction handled its first record
    since: float | None = None
    #: seconds from then until its commit is due: more than commit.interval if many others are open
    stays_open: float = 0.0
    #: the same if the partition has hardly waited for records since
    stays_longer: float = 0.0
    #: seconds that it has waited for them
    rest: float = 0.0
    last_commit: float = 0.0
    #: a lower limit than commit.max_records; 0: no lower limit
    limit: int = 0
    #: rows of event time that the open transaction has handed over before a record that is not handled yet
    rows: int = 0

    def handled(self, records: int, now: float) -> None:
        self.records += records
        if self.since is None:
            self.since, settings = now, self.settings
            # Counted once, when it opens: the transactions that open together then end one after the other.
            longest = settings.transaction_timeout / 3
            self.stays_open = min(max(settings.interval, len(self.open) / settings.max_rate), longest)
            self.stays_longer, self.rest = min(_LONGER * self.stays_open, longest), 0.0
            self.open.add(self)

    def hasten(self) -> None:
        """Let the open transaction commit at once, or as soon as commit.max_rate allows."""
        if self.since is not None:
            soonest = self.last_commit + len(self.open) / self.settings.max_rate
            self.stays_open = min(self.stays_open, max(0.0, soonest - self.since))
            self.stays_longer = self.stays_open

    def cut(self, records: int) -> None:
        """Subtract unprocessed records."""
        self.records -= records

    def room(self) -> int:
        """Return how many more records the open transaction may take."""
        return max(0, (self.limit or self.settings.max_records) - self.records - self.rows)

    def due(self, now: float) -> bool:
        """Return whether a transaction with records is old or large enough."""
        return self.since is not None and (self.room() == 0 or self._left(now - self.since) <= 0.0)

    def renewal_due(self, now: float) -> bool:
        """Return whether an idle partition should use its producer id again (pitfall P3)."""
        return self.since is None and now - self.last_commit >= self.settings.renew_after

    def wait(self, now: float, idle: float) -> float:
        """Return the seconds to wait for records: until the commit is due, or `idle` without an open transaction."""
        return idle if self.since is None else max(0.0, self._left(now - self.since))

    def waited(self, seconds: float, *, records: bool) -> None:
        """Note a wait for records, and whether some came; without them the partition is not behind."""
        self.rest += seconds if records else self.stays_open

    def _left(self, age: float) -> float:
        """Return the seconds until a transaction of this age is due if no record comes.

        While the partition is behind, a longer transaction costs less for each record, and hardly delays it. Not with
        a slice of event time, whose outputs are late already.
        """
        until_rested = 0.0 if self.rows else _RESTS * self.stays_open - self.rest
        if age >= self.stays_open and until_rested > 0.0:
            return min(self.stays_longer - age, until_rested)
        return self.stays_open - age

    def close(self) -> int:
        """Close or roll back the open transaction; return the number of its records."""
        records, self.records, self.rows, self.since = self.records, 0, 0, None
        self.open.discard(self)
        return records
