"""One PostgreSQL server for the tests of a process; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from examples.sinks.server import Postgres, missing


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if why := missing():
        pytest.skip(why)
    with Postgres() as server:
        yield server
