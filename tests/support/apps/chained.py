"""`python -m tests.support.apps.chained`: two inputs; each output says which record came next, and links to the last.

PROBE_* as in `run`; PROBE_SECOND is the second input. Negative amounts fail; with PROBE_DEAD_LETTERS they become dead
letters.
"""

from __future__ import annotations

import os
from typing import ClassVar

import msgspec
from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.apps.tally import Event

from statehold import Handler, Output, Record, Service, Table, dead_letter, on
from statehold.config import load


class Link(msgspec.Struct, frozen=True):
    """One handled record, and the link that depends on all records of the partition before it."""

    topic: str
    partition: int
    offset: int
    time: int
    link: int


def following(link: int, topic: str, offset: int, amount: int) -> int:
    """Return the next link."""
    return (link * 31 + len(topic) * 1009 + offset * 17 + amount) % 1_000_000_007


def chained(first: str, second: str, output: str) -> type[Handler[None]]:
    """The handler with its topics."""

    class Chained(Handler[None]):
        on_failure: ClassVar = {ValueError: dead_letter()} if "PROBE_DEAD_LETTERS" in os.environ else {}
        links = Table(key=int, value=int)
        out = Output(output, value=Link)

        @on(first, value=Event)
        def left(self, record: Record[Event]) -> None:
            self._add(record)

        @on(second, value=Event)
        def right(self, record: Record[Event]) -> None:
            self._add(record)

        def _add(self, record: Record[Event]) -> None:
            if record.value.amount < 0:
                raise ValueError(f"the amount {record.value.amount} is negative")
            last = self.links.get(0, 1)
            link = self.links[0] = following(last, record.topic, record.offset, record.value.amount)
            self.out.send(
                Link(record.topic, self.partition, record.offset, record.timestamp, link), str(self.partition)
            )

    return Chained


def main() -> None:
    end_with_the_test()
    log_json()
    first, second = os.environ["PROBE_INPUT"], os.environ["PROBE_SECOND"]
    handler = chained(first, second, os.environ["PROBE_OUTPUT"])
    Service(os.environ["PROBE_NAME"], inputs=[first, second], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
