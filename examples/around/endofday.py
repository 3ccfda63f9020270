"""Each day every account gets a statement of what moved: `statehold run examples.around.endofday:service`.

Late in the evening no record comes that would tell how late it is: then the worker's clock does, and the mark keeps
what it said, so that a replay closes the day at the same place.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

import msgspec

from statehold import Handler, Output, Record, Service, Table, Timer

#: seconds; a day for whoever does not want to wait for one
DAY = timedelta(seconds=float(os.environ.get("ENDOFDAY_DAY", "86400")))


class Movement(msgspec.Struct, frozen=True):
    """What came to an account (or left it: below zero), in cents."""

    account: str
    amount: int


class Day(msgspec.Struct, frozen=True):
    """What moved on an account since its last statement."""

    movements: int = 0
    sum: int = 0


class Statement(msgspec.Struct, frozen=True):
    """`until` is when the day ended, in milliseconds since 1970."""

    account: str
    until: int
    movements: int
    sum: int


class EndOfDay(Handler[Movement]):
    """An account's first movement of a day schedules the day's end."""

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
    """The next multiple of a day since 1970, in UTC."""
    begin = datetime.fromtimestamp(0, now.tzinfo)
    return begin + DAY * ((now - begin) // DAY + 1)


service = Service("endofday", input="movements", handler=EndOfDay)

if __name__ == "__main__":
    service.run()
