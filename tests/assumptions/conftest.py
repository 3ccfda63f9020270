"""One broker behind a proxy for all experiments of a run; each test has its own topics and ids."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.assumptions.lab import Lab
from tests.support.proxy import Proxy

from statehold.dev import Cluster


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
