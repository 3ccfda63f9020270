"""The seed of a run, and the type of the fixture that records figures with it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

#: the same in all processes of a run
SEED = int(os.environ.get("STATEHOLD_SEED") or os.environ.setdefault("PYTEST_SEED", str(random.randrange(1_000_000))))

Figure = Callable[[str, float, str], None]
