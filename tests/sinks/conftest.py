"""One PostgreSQL server for the tests of a process; where there is none they are skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dev.postgres import Postgres, missing

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in sys.path:  # tests.sinks.* and the example are imported from the project's root
    sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if why := missing():
        pytest.skip(why)
    with Postgres() as server:
        yield server
