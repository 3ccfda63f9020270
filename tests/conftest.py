"""Shared by all tests: the editable install is complete, and tiers are chosen by markers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Make modules that were added since the last script/bootstrap importable."""
    spec = importlib.util.spec_from_file_location("link_packages", ROOT / "script" / "link_packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this run cannot do."""
    wants_long = "long" in config.getoption("markexpr", "")
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root, for network namespaces"))
        if item.get_closest_marker("long") and not wants_long:
            item.add_marker(pytest.mark.skip(reason="runs in script/test --long"))
        if item.get_closest_marker("spark") and importlib.util.find_spec("pyspark") is None:
            item.add_marker(pytest.mark.skip(reason="needs pyspark: pip install 'holdfast[spark]'"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the tree."""
    return ROOT


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of the environment under test."""
    return sys.executable
