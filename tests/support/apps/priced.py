"""`python -m tests.support.apps.priced`: totals at the rate of the moment, reference data; PROBE_* as in `run`."""

from __future__ import annotations

import os

import msgspec
from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.apps.tally import Event

from statehold import Handler, Output, Record, Reference, Service, Table
from statehold.config import load


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


def main() -> None:
    end_with_the_test()
    log_json()
    handler = priced(os.environ["PROBE_OUTPUT"], os.environ["PROBE_RATES"])
    Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
