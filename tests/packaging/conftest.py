"""One wheel for the tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.environments import build_wheel


@pytest.fixture(scope="session")
def wheel(root: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel; next to it is `tree`, the copy that it was built from."""
    return build_wheel(root, python, tmp_path_factory.mktemp("wheel"))
