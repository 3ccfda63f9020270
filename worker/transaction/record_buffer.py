"""Which records come next, and how carefully: the open transaction's raw batches, and what is to be redone.

No Kafka, no clock: the live loop asks, the answer is a decision (rules T6, M4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from statehold.record import Message
from statehold.worker.handler.record_failure import Poisoned

Messages = Sequence[Message]

#: records that are decoded and handled at a time: between two such portions a commit begins, and a signal is heard
_PORTION = 10_000


def offset(message: Message) -> int:
    return message.offset() or 0


class Work:
    """Nothing that was taken is lost: it is committed, or it is back in `todo`."""

    def __init__(self) -> None:
        #: of the open transaction, and of the one whose commit is under way
        self._kept: list[Messages] = []
        self._closed: list[Messages] = []
        self._todo: deque[Messages] = deque()
        #: the record that failed; what comes before it is committed first
        self._poison: Poisoned | None = None
        #: records below this offset are handled one by one, to find the one to blame
        self._careful_until = -1
        #: a transaction has to end at this offset: what is at or behind it waits
        self.barrier: int | None = None

    @property
    def waiting(self) -> bool:
        return bool(self._todo)

    def add(self, messages: Messages) -> None:
        self._todo.append(messages)

    def next(self, room: int) -> Messages | None:
        """The next records to handle, now part of the open transaction; None when there are none before the poison."""
        if room <= 0 or not self._todo or self.at_poison is not None:
            return None
        messages = self._todo.popleft()
        size = min(room, len(messages), _PORTION)
        if offset(messages[0]) < self._careful_until:
            size = 1
        elif self._poison is not None:
            size = min(size, sum(offset(message) < self._poison.offset for message in messages))
        if self.barrier is not None:
            size = min(size, sum(offset(message) < self.barrier for message in messages[:size]))
            if size == 0:
                self._todo.appendleft(messages)
                return None
        if size < len(messages):
            self._todo.appendleft(messages[size:])
            messages = messages[:size]
        self._kept.append(messages)
        return messages

    def put_back(self, handled: int) -> None:
        """Of the last records that `next` gave only so many were handled: the others come again first."""
        if handled >= len(self._kept[-1]):
            return
        messages = self._kept.pop()
        if handled > 0:
            self._kept.append(messages[:handled])
        self._todo.appendleft(messages[handled:])

    @property
    def careful(self) -> bool:
        """What comes next is handled record by record."""
        return bool(self._todo) and self.is_careful(self._todo[0])

    def is_careful(self, messages: Messages) -> bool:
        return offset(messages[0]) < self._careful_until

    @property
    def poisoned(self) -> bool:
        """A record or a command has failed, and what comes before it is being committed."""
        return self._poison is not None

    @property
    def at_poison(self) -> Poisoned | None:
        """The failure whose record comes next: commit what is open, then `face` it."""
        if self._poison is None or (self._todo and offset(self._todo[0][0]) < self._poison.offset):
            return None
        return self._poison

    def fail_at(self, poison: Poisoned) -> None:
        """A record failed. Everything is to be redone up to it."""
        self._careful_until = -1
        self._poison = poison

    def at_barrier(self, position: int) -> bool:
        """Everything before it was handled: a commit comes first."""
        if self.barrier is None or self.poisoned:
            return False
        return position >= self.barrier or (self.waiting and offset(self._todo[0][0]) >= self.barrier)

    def face(self) -> None:
        """Everything before the poison is committed.

        :raises RecordError: it is one record's fault. Otherwise its batch is redone record by record.
        """
        poison, self._poison = self._poison, None
        assert poison is not None
        if not poison.batch:
            raise poison.error from poison.error.__cause__
        self._careful_until = offset(self._todo[0][-1]) + 1

    def spare(self) -> None:
        """What failed comes again, alone."""
        poison, self._poison = self._poison, None
        assert poison is not None
        self._careful_until = poison.offset + 1

    def suspect(self) -> None:
        """Some record of the open transaction is to blame: redo all of it one by one."""
        self._careful_until = max((offset(messages[-1]) + 1 for messages in self._kept), default=-1)

    def close(self) -> None:
        """The open transaction is complete; what comes next belongs to another one."""
        self._closed, self._kept = self._kept, []

    def undo(self) -> int:
        """Nothing that was kept has committed; how many records are to be handled again."""
        again = [*self._closed, *self._kept]
        self._todo.extendleft(reversed(again))
        self._closed, self._kept = [], []
        return sum(map(len, again))

    def committed(self) -> None:
        """The closed transaction has committed."""
        self._closed = []
