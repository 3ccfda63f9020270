"""One guarded broker for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.secured import Secured, secured


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker
