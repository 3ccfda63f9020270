"""`statehold run tests.support.apps.frozen:service`: C code keeps the interpreter's lock, where PROBE_FROZEN says.

`live`: on a thread of its own, once the file PROBE_HOLD is there. `stop`: instead of the consumer's close.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.apps.served import service

from statehold.kafka.clients.consumer import KafkaGroupConsumer

#: longer than any test
FOR = 600


def freeze(*_: Any, **__: Any) -> bool:
    ctypes.PyDLL(None).sleep(FOR)
    return True


def freeze_while_live(hold: Path) -> None:
    while not hold.exists():
        time.sleep(0.01)
    freeze()


if os.environ["PROBE_FROZEN"] == "stop":
    KafkaGroupConsumer.close = freeze  # type: ignore[method-assign]
else:
    threading.Thread(target=freeze_while_live, args=(Path(os.environ["PROBE_HOLD"]),), daemon=True).start()

__all__ = ["service"]
