"""The processes that ask the service of a run, and what they have written to its input."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from tests.chaos.answering import ASKED
from tests.chaos.asker import AskingJob, Line, read_diary
from tests.chaos.history import Patience
from tests.chaos.rows import Row
from tests.chaos.workers import Worker, pause

if TYPE_CHECKING:
    from tests.chaos.arena import Arena

#: payments per second
RATE: Final = 15.0


class Askers:
    """Used by the thread that runs the schedule; a service that answers no requests has no askers."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._began = arena, 0.0
        self._end = arena.directory / "payments"
        self.processes: list[Worker] = []
        #: the topic of the effects of payments
        self.effects = f"effects-{arena.names.service}"
        #: records of the input, by partition and offset
        self.records: dict[tuple[int, int], Row] = {}

    @property
    def topics(self) -> list[str]:
        """Topics that only such a service has."""
        names = self._arena.names
        return [self.effects, names.replies, names.dead] if self._arena.shape.askers else []

    def add(self) -> None:
        """Make processes that are not started."""
        for index in range(self._arena.shape.askers):
            command = [sys.executable, "-m", "tests.chaos.asker", str(self._job(index))]
            process = Worker(
                f"asker{index}", self._arena.directory, command, self._arena.environment(), self._arena.history
            )
            self.processes.append(process)

    def start(self) -> None:
        self._began = time.time()
        names, shape = self._arena.names, self._arena.shape
        for index, process in enumerate(self.processes):
            diary, end = str(self._diary(index)), str(self._end)
            job = AskingJob(
                names.service, names.input, self._arena.seed, index, shape.askers, RATE, self._began, diary, end
            )
            self._job(index).write_bytes(msgspec.json.encode(job))
            process.start()

    def unfinished(self) -> list[Worker]:
        """Those that have not asked everything."""
        return [process for process in self.processes if process.ended_by_itself() != 0]

    def finish(self, seconds: float) -> None:
        """Let each ask the payments that are due by now; end the wait when none has written for `seconds`."""
        if not self.processes:
            return
        self._end.write_text(str(self.end or int((time.time() - self._began) * RATE)))
        patience = Patience(self._arena.history, seconds)
        while self.unfinished() and not patience.over(sum(map(len, self.lines().values()))):
            self._arena.revive()
            pause(0.2)
        for process in self.processes:
            process.kill()

    @property
    def end(self) -> int:
        """The number of payments; 0 before `finish`."""
        return int(self._end.read_text()) if self._end.exists() else 0

    def lines(self) -> dict[int, list[Line]]:
        return {index: read_diary(self._diary(index)) for index in range(len(self.processes))}

    def learn(self, rows: Sequence[Row]) -> list[Row]:
        """Keep the askers' records, and return the others."""
        asked = [row for row in rows if row.key.startswith(ASKED.encode())] if self.processes else []
        self.records |= {(row.partition, row.offset): row for row in asked}
        return [row for row in rows if (row.partition, row.offset) not in self.records] if asked else list(rows)

    def _job(self, index: int) -> Path:
        return self._arena.directory / f"asker{index}.job.json"

    def _diary(self, index: int) -> Path:
        return self._arena.directory / f"asker{index}.diary.jsonl"
