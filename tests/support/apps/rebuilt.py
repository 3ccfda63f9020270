"""The next release of the tally: each amount counts PROBE_FACTOR times."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.apps.tally import HOLD, Event, Line, Tally, Total, stay

from statehold import Output, Record, Service


def counting(factor: int, output: str, hold_file: Path | None = None) -> type[Tally]:
    """The handler with its output topic."""

    class Counting(Tally):
        lines = Output(output, value=Line)
        hold = hold_file

        def on_record(self, record: Record[Event]) -> None:
            if record.value.amount == HOLD and self.hold is not None:
                stay(self.hold)
            key = (record.key or b"").decode()
            before = self.totals.get(key, Total())
            after = self.totals[key] = Total(before.count + 1, before.sum + factor * record.value.amount)
            self.lines.send(Line(self.partition, record.offset, record.value.id, after.count, after.sum), key)

    return Counting


if "PROBE_FACTOR" in os.environ:
    service = Service(
        os.environ["PROBE_NAME"],
        input=os.environ["PROBE_INPUT"],
        handler=counting(int(os.environ["PROBE_FACTOR"]), os.environ["PROBE_OUTPUT"], Path(os.environ["PROBE_HOLD"])),
    )
