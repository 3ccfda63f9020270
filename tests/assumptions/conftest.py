"""One broker behind a proxy for all experiments of a run; each test has its own topics and ids."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in sys.path:  # tests.support and tests.assumptions.lab are imported from the project's root
    sys.path.insert(0, str(ROOT))

from tests.assumptions.lab import Lab  # noqa: E402
from tests.support.proxy import Proxy  # noqa: E402

from holdfast.dev import Cluster  # noqa: E402


@pytest.fixture(scope="session")
def proxied() -> Iterator[tuple[str, Proxy]]:
    """Return (bootstrap servers, the proxy that all clients pass)."""
    with Proxy() as proxy, Cluster(advertised={1: proxy.port}) as kafka:
        proxy.connect(kafka.ports[1])
        yield kafka.bootstrap_servers, proxy


@pytest.fixture
def lab(proxied: tuple[str, Proxy]) -> Iterator[Lab]:
    """Return a fresh set of ids on the shared broker."""
    made = Lab(*proxied)
    yield made
    made.close()
