"""`python -m tests.support.apps.run`: one service as a process. PROBE_* say which, STATEHOLD_* are its settings.

Logs one JSON object a line to standard output. SIGUSR1 tries failed partitions again,
SIGUSR2 writes where each thread is.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.apps import killed_writing
from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.apps.tally import Tally, tally

from statehold import Service
from statehold.config import load
from statehold.disk.disk_state import WriteBehind
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.runtime import wiring


def _path(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


def _also_note_closing(handler: type[Tally]) -> Any:
    """The end of an assignment goes to the file of calls, too, by the thread that ends."""

    def processor(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if handler.note is not None and event["event"] == "partition_closed":
            handler.note(f"closed {event['partition']}")
        return event

    return processor


def main() -> None:
    end_with_the_test()
    seconds = float(os.environ.get("PROBE_SLOW", "0"))
    handler = tally(
        os.environ["PROBE_OUTPUT"], _path("PROBE_CALLS"), _path("PROBE_POISON"), seconds, _path("PROBE_HOLD")
    )
    log_json(_also_note_closing(handler))
    service = Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=handler, settings=load())
    if os.environ.get("PROBE_NO_SUSPICION"):  # a planted fault, for tests: the suspicion rule is off
        KafkaTransactions.suspicion = ""  # type: ignore[method-assign, assignment]
    if (kill := _path("PROBE_KILL_FILE")) is not None and kill.exists():
        killed_writing.arm(kill)
    if rows := os.environ.get("PROBE_ROWS_THAT_WAIT"):
        vars(wiring)["WriteBehind"] = partial(WriteBehind, int(rows))
    signal.signal(signal.SIGUSR1, lambda *_: service.retry())
    faulthandler.register(signal.SIGUSR2)
    service.run()


if __name__ == "__main__":
    main()
