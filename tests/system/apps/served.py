"""The service of `apps.run` as a module for `holdfast run tests.system.apps.served:service`."""

from __future__ import annotations

import os

from tests.system.apps.tally import tally

from holdfast import Service

service = Service(os.environ["PROBE_NAME"], input=os.environ["PROBE_INPUT"], handler=tally(os.environ["PROBE_OUTPUT"]))
