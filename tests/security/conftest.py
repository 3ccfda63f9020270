"""One guarded broker for the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # tests.support.* are imported from the project's root
    sys.path.insert(0, str(ROOT))

from tests.support.secured import Secured, secured  # noqa: E402

from holdfast.dev import JarsUnavailable, JavaMissing  # noqa: E402


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(secured(tmp_path_factory.mktemp("guarded")))
        except (JavaMissing, JarsUnavailable) as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"no Kafka here: {error}")
        yield broker
