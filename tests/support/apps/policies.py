"""Every policy in one service, for `statehold run tests.support.apps.policies:service`; the amount says what fails.

While the file PROBE_POISON exists those fail that may work later.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import ClassVar

from tests.support.apps.probed import end_with_the_test
from tests.support.apps.tally import Event, Line, Total

from statehold import Handler, Output, Record, Service, Table, dead_letter, park, retry, retry_later, stop
from statehold.errors import OutputRefused, UndecodableRecord

REFUSED, DOWN, LATER, LONG, PAUSED, PARKS, STOPS, LARGE = range(-10, -18, -1)


class Refused(ValueError):
    """Of REFUSED, while the file is there."""


class Down(ConnectionError):
    """Of DOWN, always."""


class Later(TimeoutError):
    """Of LATER, twice in a process."""


class Long(TimeoutError):
    """Of LONG, always."""


class Paused(OSError):
    """Of PAUSED, while the file is there."""


class Parks(LookupError):
    """Of PARKS, while the file is there."""


class Stops(ArithmeticError):
    """Of STOPS, always."""


RAISED: dict[int, type[Exception]] = {REFUSED: Refused, PAUSED: Paused, PARKS: Parks}
ALWAYS: dict[int, type[Exception]] = {DOWN: Down, LONG: Long, STOPS: Stops}
#: in the service itself, and not in a command of its own
RUNS = os.environ.get("PROBE_RUNS") == "1"


class Policies(Handler[Event]):
    """Totals by key."""

    on_failure: ClassVar = {
        Refused: dead_letter(),
        Down: retry(2, seconds=0.01).then(dead_letter(ordered=False)),
        Later: retry_later(1, 2, any_order=True),
        Long: retry_later(3600, any_order=True),
        Paused: retry(1000, seconds=600, longest=600),
        Parks: park(),
        Stops: stop(),
        UndecodableRecord: dead_letter(),
        OutputRefused: dead_letter(ordered=False),
    }
    totals = Table(key=str, value=Total)
    lines: Output[Line | bytes] = Output(os.environ.get("PROBE_OUTPUT", "lines"), value=Line | bytes)
    met: ClassVar[Counter[int]] = Counter()
    poison = Path(os.environ.get("PROBE_POISON", "poison"))

    def on_record(self, record: Record[Event]) -> None:
        """Book it, then fail: what was booked is undone."""
        event, key = record.value, (record.key or b"").decode()
        before = self.totals.get(key, Total())
        after = Total(before.count + 1, before.sum + abs(event.amount))
        self.totals[key] = after
        self.lines.send(Line(self.partition, record.offset, event.id, after.count, after.sum), key=key)
        if event.amount == LARGE:
            self.lines.send(bytes(3_000_000))
        self.met[event.id] += 1
        if event.amount in ALWAYS:
            raise ALWAYS[event.amount](f"event {event.id}")
        if event.amount == LATER and self.met[event.id] <= 2 and RUNS:  # it works when it is looked at later
            raise Later(f"event {event.id}")
        if event.amount in RAISED and self.poison.exists():
            raise RAISED[event.amount](f"event {event.id}")


if "PROBE_NAME" in os.environ:
    if RUNS:
        end_with_the_test()
    service = Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=Policies)
