"""A port or directory in use names its holder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from statehold.dev.errors import InUse
from statehold.dev.ports import HOST, free_ports, holder_of_file, is_free, require_free, require_unheld


@pytest.fixture
def held_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_held_port_names_pid_and_command(held_port: int) -> None:
    assert not is_free(held_port)
    with pytest.raises(InUse, match=rf"port {held_port} is held by pid {os.getpid()} \(.+\): go away"):
        require_free(held_port, "go away")


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_a_held_directory_names_pid_and_command(tmp_path: Path) -> None:
    data = tmp_path / "broker-1" / "data"
    data.mkdir(parents=True)
    require_unheld(data)
    with (data / ".lock").open("w"):
        assert holder_of_file(data / ".lock") == os.getpid()
        with pytest.raises(InUse, match=f"directory {tmp_path} is held by pid {os.getpid()} "):
            require_unheld(data)
    require_unheld(data)
