"""Fixtures for commands: a directory, a service and control sockets of the test's own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Commands

from statehold.dev import Cluster


@pytest.fixture
def statehold(python: str, tmp_path: Path) -> Iterator[Commands]:
    """Commands without a broker; their control sockets are this test's own."""
    runtime, directory = tmp_path / "runtime", tmp_path / "work"
    runtime.mkdir()
    directory.mkdir()
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("STATEHOLD_")}
    environment = inherited | {"XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "120"}
    commands = Commands(python, directory, f"echo-{uuid.uuid4().hex[:8]}", environment)
    commands.write_app()
    yield commands
    for daemon in commands.daemons:
        daemon.end()


@pytest.fixture
def on_kafka(statehold: Commands, kafka: Cluster) -> Commands:
    """The same, with a real broker and the shortest session that it allows."""
    statehold.environment |= {
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
    }
    return statehold
