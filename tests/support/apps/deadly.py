"""`statehold run tests.support.apps.deadly:service`: the tally, with a record that ends the process.

PROBE_DEADLY says how. It does so while the file PROBE_POISON exists.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.support.apps.probed import end_with_the_test
from tests.support.apps.tally import POISON, Event, Line, Tally

from statehold import Output, Record, Service, dead_letter
from statehold.errors import DeadlyRecord

#: what a handler takes, and what the process may have
TAKES, LIMIT = 10 << 30, 4 << 30


def leave() -> None:
    """End without a word."""
    os._exit(7)


def crash() -> None:
    """Read address 0, as a faulty extension does."""
    ctypes.string_at(0)


def take() -> None:
    """Take more memory than there is, by C code that does not check what it got."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    ctypes.memset(library.malloc(ctypes.c_size_t(TAKES)) or 0, 1, TAKES)


WAYS = {"leave": leave, "crash": crash, "take": take}


class Deadly(Tally):
    lines = Output(os.environ["PROBE_OUTPUT"], value=Line)
    poison = Path(os.environ["PROBE_POISON"])

    def on_record(self, record: Record[Event]) -> None:
        if record.value.amount == POISON and self.poison.exists():
            WAYS[os.environ["PROBE_DEADLY"]]()
        super().on_record(record)


class Batched(Deadly):
    def on_batch(self, records: Sequence[Record[Event]]) -> None:
        for record in records:
            self.on_record(record)


class DeadLettered(Deadly):
    on_failure: ClassVar = {DeadlyRecord: dead_letter()}


HANDLERS = {"": Deadly, "batched": Batched, "dead-lettered": DeadLettered}
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if os.environ["PROBE_DEADLY"] == "take":
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
if "PROBE_COMMAND" not in os.environ and sys.stdin is not None:
    end_with_the_test()
service = Service(
    os.environ["PROBE_NAME"],
    input=os.environ["PROBE_INPUT"],
    handler=HANDLERS[os.environ.get("PROBE_HANDLER", "")],
)
