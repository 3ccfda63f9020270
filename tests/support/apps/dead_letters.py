"""`python -m tests.support.apps.dead_letters`: the tally with failures of every kind; PROBE_* as in `run`."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import ClassVar

from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.apps.tally import Event, Line, Tally

from statehold import Output, Record, Service, dead_letter, retry, retry_later
from statehold.api.handler import Handler
from statehold.config import load
from statehold.errors import UndecodableRecord


class Flaky(ConnectionError):
    """Depends on nothing that a record says."""


def dead_letters(output: str, poison_file: Path, flaky: float) -> type[Handler[Event]]:
    """The handler with its output topic; each record raises with the chance of `flaky`, whatever it is."""

    class Bound(Tally):
        on_failure: ClassVar = {
            ValueError: dead_letter(),
            UndecodableRecord: dead_letter(),
            Flaky: retry(1, seconds=0.01, longest=0.02).then(dead_letter()),
        }
        lines = Output(output, value=Line)
        poison = poison_file

        def on_record(self, record: Record[Event]) -> None:
            super().on_record(record)
            if random.random() < flaky * (20 if record.value.id % 50 == 0 else 1):
                raise Flaky("no answer")

    return Bound


def later(output: str, flaky: float) -> type[Handler[Event]]:
    """No state: what fails is tried again after one second, then after two, then it is a dead letter."""

    class Bound(Handler[Event]):
        on_failure: ClassVar = {ConnectionError: retry_later(1, 2)}
        lines = Output(output, value=Line)

        def on_record(self, record: Record[Event]) -> None:
            self.lines.send(Line(self.partition, record.offset, record.value.id, 0, 0), record.key)
            if random.random() < flaky:
                raise Flaky("no answer")

    return Bound


def main() -> None:
    end_with_the_test()
    log_json()
    output, flaky = os.environ["PROBE_OUTPUT"], float(os.environ.get("PROBE_FLAKY", "0"))
    handler = (
        later(output, flaky)
        if "PROBE_LATER" in os.environ
        else dead_letters(output, Path(os.environ["PROBE_POISON"]), flaky)
    )
    Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
