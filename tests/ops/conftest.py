"""Shared by the tests of the ops server: names of one test's service, a browser, a stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.browser import Browser
from tests.support.desk import Names

from statehold.dev import Cluster


@pytest.fixture
def names(kafka: Cluster) -> Names:
    return Names.new(kafka.bootstrap_servers)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def page() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser
