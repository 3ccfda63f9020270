"""Puts a golden file into a driver, as if its service had just been killed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.support import inside

from statehold import Handler
from statehold.testing import Driver

HERE = Path(__file__).resolve().parent


def driver_of(path: Path, kind: type[Handler[Any]], **options: Any) -> Driver:
    """The topics of partition 0 as the file has them, offsets included; `restore()` makes an owner."""
    driver = Driver(kind, **options)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        log = driver.broker.log(_topic(row["topic"]), 0)
        log.end = row["offset"]  # the markers of transactions have taken offsets, too
        key = base64.b64decode(row["key"]) if "key" in row else None
        log.append(base64.b64decode(row["value"]), key, timestamp=row["timestamp"])
    driver.broker.log(driver.names.changelog, 0).end += 1
    expected = expected_of(path)
    offsets = expected.get("positions", {driver.names.input: expected["position"]})
    driver.broker.offsets.update({(topic, 0): offset for topic, offset in offsets.items()})
    logs = [driver.broker.log(topic, 0) for topic in driver.names.inputs]
    inside.replace_lane(driver, logs)
    return driver


def _topic(written: str) -> str:
    """Today's name of a topic: the files keep the names of their time."""
    return written.replace(".increment", ".changelog").replace(".full", ".snapshot")


def expected_of(path: Path) -> dict[str, Any]:
    """Position, digest and tables that its writer had in the end."""
    expected: dict[str, Any] = json.loads(path.with_suffix(".expected.json").read_text())
    return expected
