"""Decides which processes start, stop and restart. Pure: it gets the time and what was seen, and returns orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from statehold.common.exit_codes import MEANINGS, Exit
from statehold.errors import UsageError

#: most processes of one supervisor
MOST: Final = 256
#: seconds before a process that has ended starts again: doubled with each end within `_WINDOW`
_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 60.0
#: a process that ends this often within `_WINDOW` seconds stays down
_MOST_ENDS: Final = 10
_WINDOW: Final = 600.0
#: seconds until the first answer of a process, which imports your code first
_FIRST_ANSWER: Final = 300.0
#: seconds between SIGABRT, which writes the stacks, and SIGKILL
_ABORT: Final = 10.0
#: seconds that a process has to stay live before the next one is restarted
_STEADY: Final = 1.0

State = Literal["waiting", "starting", "live", "stopping", "down"]
Then = Literal["start", "start later", "remove", "down"]
Note = tuple[Literal["info", "warning", "error"], str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Order:
    """What the supervisor does next to one process; `check` tries the code and the settings, and is of no process."""

    verb: Literal["start", "stop", "drain", "abort", "kill", "check"]
    number: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a process has answered; `silent`: seconds since its last answer, or since its start without one."""

    silent: float
    answered: bool = False
    running: bool = False
    #: as `/live`
    alive: bool = False
    #: every partition that the group has assigned to it is live or failed
    settled: bool = False
    failed: frozenset[int] = frozenset()


@dataclass(slots=True)
class ProcessSlot:
    """One numbered process, also while it does not run."""

    number: int
    state: State = "waiting"
    #: waiting: the time of the next start; stopping: the time of SIGKILL
    at: float = 0.0
    #: stopping: what follows
    then: Then = "start"
    why: str = ""
    code: int | None = None
    restarts: int = 0
    release: int = 0
    ends: deque[float] = field(default_factory=deque)
    settled_since: float | None = None
    stuck_since: float | None = None
    failed: frozenset[int] = frozenset()

    @property
    def runs(self) -> bool:
        return self.state in ("starting", "live", "stopping")


@dataclass(slots=True)
class Roll:
    """A rolling restart, also the last one after its end."""

    state: Literal["none", "checking", "running", "done", "stopped"] = "none"
    #: process that restarts now
    number: int = 0
    todo: list[int] = field(default_factory=list)
    why: str = ""
    #: partitions that had failed before
    failed: frozenset[int] = frozenset()

    @property
    def runs(self) -> bool:
        return self.state in ("checking", "running")


class Fleet:
    """The processes of one service. `stop_within`: seconds from SIGTERM to SIGKILL; `patience`: of a stuck process."""

    def __init__(self, count: int, stop_within: float, patience: float) -> None:
        self.wanted, self._stop_within, self._patience = count, stop_within, patience
        self.slots = {number: ProcessSlot(number) for number in range(1, count + 1)}
        self.roll = Roll()
        self.stopping = False
        #: log events that are not logged yet
        self.notes: list[Note] = []
        self._code = 0
        self._release = 1
        self._orders: list[Order] = []

    @property
    def over(self) -> bool:
        """Whether no process runs or will start."""
        return all(slot.state == "down" for slot in self.slots.values())

    @property
    def code(self) -> int:
        """Return the exit code: an error's of a process that stays down, or that did not stop well; else 0."""
        return self._code or next((slot.code for slot in self.slots.values() if slot.code), 0)

    # What has happened

    def ended(self, number: int, code: int, now: float) -> None:
        """Note the end of a process; `code` as a shell reports it, 128 and more for a signal."""
        slot = self.slots[number]
        asked, slot.code = slot.state == "stopping" and slot.then != "start later", code
        slot.settled_since = slot.stuck_since = None
        slot.failed = frozenset()
        if asked:
            self._ended_as_asked(slot, code)
            return
        slot.ends.append(now)
        while now - slot.ends[0] > _WINDOW:
            slot.ends.popleft()
        if self.roll.state == "running" and slot.release == self._release:
            self._end_roll(f"process {number} ended with exit code {code} with the new code or settings")
            if self.roll.number == number and self._others_run(number):
                self._down(slot, self.roll.why)
                return
        if not _is_restarted(code):
            self._down(slot, f"exit code {code}: {_meaning(code)}")
        elif len(slot.ends) >= _MOST_ENDS:
            self._down(slot, f"it ended {_MOST_ENDS} times within {_WINDOW:.0f} s, the last time with exit code {code}")
        else:
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (len(slot.ends) - 1))
            slot.restarts += 1
            slot.state, slot.at, slot.why = "waiting", now + delay, f"exit code {code}"
            self._note("warning", "process_restarts", process=number, exit_code=code, restart_in=delay)

    def seen(self, number: int, sight: Sight, now: float) -> None:
        """Note what a running process answered."""
        slot = self.slots[number]
        if slot.state not in ("starting", "live"):
            return
        slot.failed = sight.failed
        if not sight.settled:
            slot.settled_since = None
        elif slot.settled_since is None:
            slot.settled_since = now
        if slot.state == "starting" and slot.settled_since is not None and now - slot.settled_since >= _STEADY:
            slot.state, slot.why = "live", ""
        self._judge(slot, sight, now)

    # What is wanted

    def restart(self, now: float) -> None:
        """Begin a rolling restart. :raises UsageError: the processes stop, or one is in progress."""
        self._require_quiet()
        failed = frozenset[int]().union(*(slot.failed for slot in self.slots.values()))
        self.roll = Roll("checking", failed=failed)
        self._note("info", "roll_started", processes=len(self.slots))
        self._orders.append(Order("check"))

    def checked(self, why: str, now: float) -> None:
        """Continue the rolling restart; `why`: the new code or settings cannot be loaded."""
        if self.roll.state != "checking":
            return
        if why:
            self._end_roll(f"no process was stopped, because the new code or settings cannot be loaded: {why}")
            return
        self._release += 1
        # A process that does not run comes first, because the release may be what lets it run.
        todo = sorted(self.slots.values(), key=lambda slot: (slot.runs, slot.number))
        self.roll.state, self.roll.todo = "running", [slot.number for slot in todo]

    def scale(self, count: int, now: float) -> None:
        """Change the number of processes. :raises UsageError: out of bounds, or a bad moment."""
        if not 1 <= count <= MOST:
            raise UsageError(f"{count} processes: from 1 to {MOST}")
        self._require_quiet()
        self._note("info", "scaled", processes=count, before=self.wanted)
        self.wanted = count
        for number in range(1, count + 1):
            slot = self.slots.get(number)
            if slot is None or slot.state == "down":
                self.slots[number] = ProcessSlot(number)
            elif slot.state == "stopping" and slot.then == "remove":
                slot.then = "start"
        for number in [each for each in self.slots if each > count]:
            self._stop(self.slots[number], "remove", now, drain=True)

    def stop(self, now: float, *, drain: bool = False) -> None:
        """Stop all; `drain`: static members leave their group, too."""
        if self.stopping:
            return
        self.stopping = True
        if self.roll.runs:
            self._end_roll("the supervisor stops")
        for slot in list(self.slots.values()):
            self._stop(slot, "remove", now, drain=drain)

    def next(self, now: float) -> list[Order]:
        """Return what to do now."""
        self._continue_roll(now)
        for slot in self.slots.values():
            if slot.state == "waiting" and now >= slot.at:
                self._start(slot)
            elif slot.state == "stopping" and now >= slot.at:
                slot.at = now + self._stop_within
                self._note(
                    "warning", "process_killed", process=slot.number, cause=slot.why or "it did not stop in time"
                )
                self._orders.append(Order("kill", slot.number))
        orders, self._orders = self._orders, []
        return orders

    # Steps

    def _ended_as_asked(self, slot: ProcessSlot, code: int) -> None:
        if code and self.stopping:
            self._code = code
        if slot.then == "remove":
            del self.slots[slot.number]
        elif slot.then == "down":
            self._down(slot, slot.why)
        else:
            self._start(slot)

    def _start(self, slot: ProcessSlot) -> None:
        slot.state, slot.then, slot.release = "starting", "start", self._release
        self._orders.append(Order("start", slot.number))

    def _stop(self, slot: ProcessSlot, then: Then, now: float, *, drain: bool = False) -> None:
        slot.then = then
        if slot.state == "stopping":
            return
        if not slot.runs:
            if then == "remove":
                del self.slots[slot.number]
            return
        slot.state, slot.at = "stopping", now + self._stop_within
        self._orders.append(Order("drain" if drain else "stop", slot.number))

    def _down(self, slot: ProcessSlot, why: str) -> None:
        slot.state, slot.why = "down", why
        self._note("error", "process_down", process=slot.number, cause=why)

    def _judge(self, slot: ProcessSlot, sight: Sight, now: float) -> None:
        """Abort a process that is stuck: it runs and is not live, or it does not answer."""
        silence = self._patience if sight.answered else _FIRST_ANSWER
        if sight.running and not sight.alive:
            slot.stuck_since = slot.stuck_since if slot.stuck_since is not None else now
        else:
            slot.stuck_since = None
        stuck = slot.stuck_since is not None and now - slot.stuck_since >= self._patience
        if not stuck and sight.silent < silence:
            return
        slot.why = "it is stuck" if stuck else f"it has not answered for {sight.silent:.0f} s"
        self._note("error", "process_killed", process=slot.number, cause=slot.why)
        if self.roll.state == "running" and self.roll.number == slot.number:
            self._end_roll(f"process {slot.number} was killed before it was live: {slot.why}")
        self._orders.append(Order("abort", slot.number))
        slot.state, slot.at, slot.then = "stopping", now + _ABORT, "start later"

    def _continue_roll(self, now: float) -> None:
        roll = self.roll
        if roll.state != "running":
            return
        if roll.number:
            slot = self.slots[roll.number]
            if found := slot.failed - roll.failed:
                partitions = ", ".join(map(str, sorted(found)))
                self._end_roll(f"partition {partitions} failed in process {slot.number} with the new code or settings")
                if self._others_run(slot.number):
                    slot.why = roll.why
                    self._stop(slot, "down", now, drain=True)
                return
            if slot.state != "live" or slot.release != self._release:
                return
            roll.number = 0
        if any(slot.release == self._release and slot.state in ("waiting", "starting") for slot in self._all()):
            return  # it ended by itself, and starts with the new code (rule R1)
        if not roll.todo:
            roll.state = "done"
            self._note("info", "roll_done", processes=len(self.slots))
            return
        slot = self.slots[roll.todo.pop(0)]
        roll.number = slot.number
        if slot.release == self._release:
            return  # it has the new code already
        slot.ends.clear()
        if slot.runs:
            slot.failed = frozenset()
            self._stop(slot, "start", now)
        else:
            self._start(slot)

    def _end_roll(self, why: str) -> None:
        self.roll.state, self.roll.why, self.roll.todo = "stopped", why, []
        self._note("error", "roll_stopped", cause=why)

    def _others_run(self, number: int) -> bool:
        return any(slot.runs for slot in self._all() if slot.number != number)

    def _require_quiet(self) -> None:
        if self.stopping:
            raise UsageError("the processes stop; nothing was changed")
        if self.roll.runs:
            raise UsageError("a rolling restart is in progress. Next: wait for its end, `statehold status` shows it")

    def _note(self, level: Literal["info", "warning", "error"], event: str, **fields: Any) -> None:
        self.notes.append((level, event, fields))

    def _all(self) -> Collection[ProcessSlot]:
        return self.slots.values()


def _is_restarted(code: int) -> bool:
    """Return whether the table of exit codes says that a supervisor starts the process again (rule R2)."""
    known = {int(each): restart for each, (_, restart) in MEANINGS.items()}
    return known.get(code, True)


def _meaning(code: int) -> str:
    return MEANINGS[Exit(code)][0]
