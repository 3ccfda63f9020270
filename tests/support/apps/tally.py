"""A handler whose outputs and state are a pure fold over its input, so that a reader can compute them again."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from statehold import Handler, Output, Record, Table


class Event(msgspec.Struct, frozen=True):
    id: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    sum: int = 0


class Line(msgspec.Struct, frozen=True):
    """One line per event: where it came from, and the key's total after it."""

    partition: int
    offset: int
    id: int
    count: int
    sum: int


#: the amount of an event that the handler refuses while the file PROBE_POISON exists
POISON = -1
#: the amount of an event that deletes its key
CLEAR = -2
#: the amount of an event that the handler stays in while the file PROBE_HOLD exists; if the file holds a number, it
#: removes the file and stays this number of seconds in a call that keeps the interpreter to itself
HOLD = -3

#: with the partition the key of what commands leave behind, and the one whose count shows their place
COMMANDS, WITNESS = "commands", "key-1"

Note = Callable[[str], None]


class Tally(Handler[Event]):
    """Totals by key. Subclasses name the output."""

    totals = Table(key=str, value=Total)
    lines: Output[Line]
    #: writes down every call, where a test wants to know
    note: Note | None = None
    poison: Path | None = None
    hold: Path | None = None
    #: seconds that each record takes
    slow: float = 0.0

    def on_record(self, record: Record[Event]) -> None:
        if self.note is not None:
            self.note(f"call {self.partition} {record.offset}")
        if self.slow:
            time.sleep(self.slow)
        if record.value.amount == HOLD and self.hold is not None:
            stay(self.hold)
        event, key = record.value, (record.key or b"").decode()
        before = self.totals.get(key, Total())
        after = Total(before.count + 1, before.sum + event.amount)
        if event.amount == CLEAR:
            after = Total()
            self.totals.delete(key)
        else:
            self.totals[key] = after
        self.lines.send(Line(self.partition, record.offset, event.id, after.count, after.sum), key)
        if event.amount == POISON and self.poison is not None and self.poison.exists():
            raise ValueError("poison")

    def on_command(self, command: str, record: Record[bytes]) -> None:
        """What it leaves behind depends on every command before it, and on where it stands among the records."""
        key = f"{COMMANDS}-{self.partition}"
        before, near = self.totals.get(key, Total()), self.totals.get(WITNESS, Total())
        after = Total(before.count + 1, (before.sum * 31 + near.count) % 1_000_003)
        self.totals[key] = after
        self.lines.send(Line(self.partition, record.offset, int(record.value), after.count, after.sum), key)


def stay(hold: Path) -> None:
    if hold.exists() and (text := hold.read_text()):
        hold.unlink()
        ctypes.PyDLL(None).usleep(round(float(text) * 1e6))
    while hold.exists():
        time.sleep(0.01)


def tally(
    output: str,
    calls: Path | None = None,
    poison_file: Path | None = None,
    seconds: float = 0.0,
    hold_file: Path | None = None,
) -> type[Tally]:
    """The handler with its output topic, and with a file to which all processes write their calls."""

    class Bound(Tally):
        lines = Output(output, value=Line)
        note = None if calls is None else staticmethod(Calls(calls).note)
        poison = poison_file
        slow = seconds
        hold = hold_file

    return Bound


class Calls:
    """Lines `WHAT PARTITION ... EPOCH`, appended whole, so that one file holds the order over all processes.

    An epoch is one thread of one process: a partition has a thread of its own for each assignment.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._numbers = itertools.count(1)
        self._local = threading.local()

    def note(self, text: str) -> None:
        if not hasattr(self._local, "epoch"):
            self._local.epoch = f"{os.getpid()}-{next(self._numbers)}"
        os.write(self._file, f"{text} {self._local.epoch}\n".encode())
