"""The service of `apps.keyed` as a module for `statehold run tests.support.apps.keyed_service:service` and commands."""

from __future__ import annotations

import os

from tests.support.apps.keyed import keyed
from tests.support.apps.probed import end_with_the_test

from statehold import Service

if "PROBE_COMMAND" not in os.environ:  # a command of its own ends by itself
    end_with_the_test()
first, second = os.environ["PROBE_INPUT"], os.environ["PROBE_SECOND"]
service = Service(
    os.environ["PROBE_NAME"], inputs=[first, second], handler=keyed(first, second, os.environ["PROBE_OUTPUT"])
)
