"""`python -m tests.system.apps.priced`: totals at the rate of the moment, reference data; PROBE_* as in `run`."""

from __future__ import annotations

import os
import threading

import msgspec
import structlog
from tests.system.apps.tally import Event

from holdfast import Handler, Output, Record, Reference, Service, Table
from holdfast.config.load import load


class Priced(msgspec.Struct, frozen=True):
    """What one record has seen, and what it came to."""

    id: int
    partition: int
    offset: int
    rate: int
    total: int


def priced(output: str, rates: str) -> type[Handler[Event]]:
    """The handler with its topics."""

    class Bound(Handler[Event]):
        rates_ = Reference(rates, key=str, value=int)
        totals = Table(key=str, value=int)
        out = Output(output, value=Priced)

        def on_record(self, record: Record[Event]) -> None:
            key, rate = (record.key or b"").decode(), self.rates_["rate"]
            total = self.totals[key] = self.totals.get(key, 0) + record.value.amount * rate
            self.out.send(Priced(record.value.id, self.partition, record.offset, rate, total), record.key)

    return Bound


def _end_with_the_test() -> None:
    """Its end of the pipe is closed when it dies, however it dies."""
    os.read(0, 1)
    os._exit(9)


def main() -> None:
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(),
    )
    handler = priced(os.environ["PROBE_OUTPUT"], os.environ["PROBE_RATES"])
    Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
