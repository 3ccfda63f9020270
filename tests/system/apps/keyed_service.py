"""The service of `apps.keyed`: `python -m tests.system.apps.keyed_service`, or for the commands as MODULE:service."""

from __future__ import annotations

import os

from tests.system.apps.keyed import keyed
from tests.system.apps.probed import end_with_the_test, log_json

from statehold import Service
from statehold.config.load import load

first, second = os.environ["PROBE_INPUT"], os.environ["PROBE_SECOND"]
handler = keyed(first, second, os.environ["PROBE_OUTPUT"])
service = Service(os.environ["PROBE_NAME"], inputs=[first, second], handler=handler, settings=load())

if __name__ == "__main__":
    end_with_the_test()
    log_json()
    service.run()
