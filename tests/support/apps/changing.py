"""A service whose inputs are those of PROBE_INPUTS, as a module for commands: `tests.support.apps.changing:service`.

Its state is the chain of `apps.chained` and a join of the first input with the others; each input has a method. A
negative amount is dead-lettered if PROBE_DEAD_LETTERS is set, without blocking its key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from tests.support.apps.chained import Link, following
from tests.support.apps.tally import Event

from statehold import Handler, JoinBuffer, Output, Record, Service, Table, dead_letter, on


def changing(inputs: Sequence[str], output: str) -> type[Handler[Any]]:
    """The handler with its topics."""

    class Changing(Handler[Any]):
        on_failure: ClassVar = {ValueError: dead_letter(ordered=False)} if "PROBE_DEAD_LETTERS" in os.environ else {}
        links = Table(key=int, value=int)
        pairs = JoinBuffer(timedelta(days=9), key=bytes, left=int, right=int)
        out = Output(output, value=Link)

        def add(self, record: Record[Event], *, first: bool) -> None:
            event, key = record.value, record.key or b""
            if event.amount < 0:
                raise ValueError(event.amount)
            (self.pairs.left if first else self.pairs.right)(record, key, event.amount)
            link = self.links[0] = following(self.links.get(0, 1), record.topic, record.offset, event.amount)
            self.out.send(
                Link(record.topic, self.partition, record.offset, record.timestamp, link), str(self.partition)
            )

    def method(number: int, topic: str) -> Any:
        def handle(self: Changing, record: Record[Event]) -> None:
            self.add(record, first=number == 0)

        return on(topic, value=Event)(handle)

    methods = {f"of_{number}": method(number, topic) for number, topic in enumerate(inputs)}
    return type("ChangingInputs", (Changing,), methods)


if "PROBE_INPUTS" in os.environ:
    topics = os.environ["PROBE_INPUTS"].split(",")
    service = Service(os.environ["PROBE_NAME"], inputs=topics, handler=changing(topics, os.environ["PROBE_OUTPUT"]))
