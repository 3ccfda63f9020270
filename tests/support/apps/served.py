"""The service of `apps.run` as a module for `statehold run tests.support.apps.served:service`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.apps.probed import end_with_the_test
from tests.support.apps.tally import tally

from statehold import Service

if "PROBE_COMMAND" not in os.environ:  # a command of its own ends by itself
    end_with_the_test()
service = Service(
    os.environ["PROBE_NAME"],
    input=os.environ["PROBE_INPUT"],
    handler=tally(
        os.environ["PROBE_OUTPUT"],
        poison_file=Path(os.environ["PROBE_POISON"]),
        hold_file=Path(os.environ["PROBE_HOLD"]),
    ),
)
