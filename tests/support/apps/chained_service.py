"""The service of `apps.chained` as a module for the commands: `tests.support.apps.chained_service:service`."""

from __future__ import annotations

import os

from tests.support.apps.chained import chained

from statehold import Service

first, second = os.environ["PROBE_INPUT"], os.environ["PROBE_SECOND"]
service = Service(
    os.environ["PROBE_NAME"], inputs=[first, second], handler=chained(first, second, os.environ["PROBE_OUTPUT"])
)
