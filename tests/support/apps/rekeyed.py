"""`python -m tests.support.apps.rekeyed`: a ledger that sends to itself by account. PROBE_* as in `run`."""

from __future__ import annotations

import os

from tests.support.apps.probed import end_with_the_test, log_json
from tests.support.rekeyed import ledger

from statehold import Service
from statehold.config import load


def main() -> None:
    end_with_the_test()
    log_json()
    topic = os.environ["PROBE_INPUT"]
    handler = ledger(topic, os.environ["PROBE_OUTPUT"])
    Service(os.environ["PROBE_NAME"], input=topic, handler=handler, settings=load()).run()


if __name__ == "__main__":
    main()
