"""The service of `apps.run` as a module for `holdfast run tests.system.apps.served:service`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.system.apps.tally import tally

from holdfast import Service


def _end_with_the_test() -> None:
    os.read(0, 1)
    os._exit(9)


threading.Thread(target=_end_with_the_test, daemon=True).start()
service = Service(
    os.environ["PROBE_NAME"],
    input=os.environ["PROBE_INPUT"],
    handler=tally(
        os.environ["PROBE_OUTPUT"],
        poison_file=Path(os.environ["PROBE_POISON"]),
        hold_file=Path(os.environ["PROBE_HOLD"]),
    ),
)
