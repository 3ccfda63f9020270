"""A record buffer that commits everything before one record, and asks for a decision before the handler gets it.

The partition's last owner died at this record, or an operator wants it dead-lettered unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehold.api.record import Message
from statehold.worker.handler.dead_letters import coordinates
from statehold.worker.handler.record_failure import HandlingFailed
from statehold.worker.transaction.record_buffer import Messages, RecordBuffer

#: records that are handled one by one if it is unknown at which one the last owner died: a kill from outside costs its
#: next owner a tenth of a second. A record further behind is found in two steps: its batch, then the record
CAREFUL: Final = 1_000


class SuspectBuffer(RecordBuffer):
    """Only a partition whose last owner died there has one."""

    def __init__(self, taken: int, suspect: tuple[str, int], failure_at: Callable[[Message], HandlingFailed]) -> None:
        """`suspect`: topic and offset. `failure_at` returns the failure to face at the record."""
        super().__init__(taken)
        self._suspect: tuple[str, int] | None = suspect
        self._failure_at = failure_at
        self._facing: HandlingFailed | None = None

    def next(self, room: int) -> Messages | None:
        if self._suspect is not None and self.failure is None and self.barrier is None and self.todo:
            messages = self.todo[0]
            before = next((i for i, each in enumerate(messages) if coordinates(each) == self._suspect), -1)
            if before == 0:
                self._facing = self._failure_at(messages[0])
                self.fail_at(self._facing)
                return None
            if before > 0:
                self.todo[0] = messages[before:]
                self.todo.appendleft(messages[:before])
        return super().next(room)

    def retry(self) -> None:
        if self.failure is self._facing:
            self._suspect = None
        super().retry()
