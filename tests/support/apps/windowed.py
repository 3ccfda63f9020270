"""`python -m tests.support.apps.windowed`: a count of each key in windows of a minute; PROBE_* as in `run`.

It kills itself at the window of each key that has a file in the folder PROBE_KILLS, once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.apps.probed import end_with_the_test, log_json

from statehold import Handler, Output, Record, Service, Tumbling
from statehold.config import load

MINUTE = 60_000


def windowed(output: str, kills: Path) -> type[Handler[bytes]]:
    """The handler with its topic."""

    class OfTopics(Handler[bytes]):
        counts = Tumbling(MINUTE // 1000, key=str, value=int)
        out = Output(output, value=str)

        def on_record(self, record: Record[bytes]) -> None:
            self.counts.update(record, record.value.decode(), lambda count: (count or 0) + 1)

        def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
            self.out.send(f"{key} {start} {value}")
            if (kills / key).exists():
                (kills / key).unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    return OfTopics


def main() -> None:
    end_with_the_test()
    log_json()
    handler = windowed(os.environ["PROBE_OUTPUT"], Path(os.environ["PROBE_KILLS"]))
    Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
