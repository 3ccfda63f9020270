"""Sends each account a statement at the end of the day: `statehold run examples.around.endofday:service`.

On an idle partition no record advances the clock, so the worker's clock does. The commit record stores its time, so
that a replay closes the day at the same place.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

import msgspec

from statehold import Handler, Output, Record, Service, Table, Timer

#: Length of a day in seconds; the variable shortens it for a test.
DAY = timedelta(seconds=float(os.environ.get("ENDOFDAY_DAY", "86400")))


class Movement(msgspec.Struct, frozen=True):
    """A movement on an account in cents; negative amounts leave the account."""

    account: str
    amount: int


class Day(msgspec.Struct, frozen=True):
    """The movements of an account since its last statement."""

    movements: int = 0
    sum: int = 0


class Statement(msgspec.Struct, frozen=True):
    """A statement; `until` is the end of the day in milliseconds since 1970."""

    account: str
    until: int
    movements: int
    sum: int


class EndOfDay(Handler[Movement]):
    """Schedules the end of the day at an account's first movement of the day."""

    days = Table(key=str, value=Day)
    statements = Output("statements", value=Statement)

    def on_record(self, record: Record[Movement]) -> None:
        account, day = record.value.account, self.days.get(record.value.account)
        if day is None:
            day = Day()
            self.schedule(end_of_day(record.now), account, id=account)
        self.days[account] = Day(day.movements + 1, day.sum + record.value.amount)

    def on_timer(self, timer: Timer) -> None:
        day = self.days[timer.payload]
        self.days.delete(timer.payload)
        self.statements.send(Statement(timer.payload, timer.due, day.movements, day.sum), key=timer.payload)


def end_of_day(now: datetime) -> datetime:
    """Return the next multiple of a day since 1970, in UTC."""
    begin = datetime.fromtimestamp(0, now.tzinfo)
    return begin + DAY * ((now - begin) // DAY + 1)


service = Service("endofday", input="movements", handler=EndOfDay)

if __name__ == "__main__":
    service.run()
