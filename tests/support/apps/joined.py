"""`python -m tests.support.apps.joined`: the joins of `tests.support.joins` over two inputs; PROBE_* as in `run`."""

from __future__ import annotations

import os

from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.apps.tally import Event
from tests.support.joins import Ask, Bid, Joined

from statehold import Handler, Output, Record, Service, on
from statehold.config import load


def bid(offset: int, event: Event) -> Bid:
    return Bid(str(event.amount), 2 * offset)


def ask(offset: int, event: Event) -> Ask:
    return Ask(str(event.amount), 2 * offset + 1)


def joined(first: str, second: str, output: str) -> type[Handler[None]]:
    """The handler with its topics."""

    class OfTopics(Joined):
        on_record = Handler.on_record
        out = Output(output, value=str)

        @on(first, value=Event)
        def of_first(self, record: Record[Event]) -> None:
            self.join(record, bid(record.offset, record.value))

        @on(second, value=Event)
        def of_second(self, record: Record[Event]) -> None:
            self.join(record, ask(record.offset, record.value))

        def on_late(self, name: str, key: str, record: Record[Event]) -> None:
            value = (bid if record.topic == first else ask)(record.offset, record.value)
            self.out.send(f"{name} late {value.id}")

    return OfTopics  # type: ignore[return-value]


def main() -> None:
    end_with_the_test()
    log_json()
    first, second = os.environ["PROBE_INPUT"], os.environ["PROBE_SECOND"]
    handler = joined(first, second, os.environ["PROBE_OUTPUT"])
    Service(os.environ["PROBE_NAME"], inputs=[first, second], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
