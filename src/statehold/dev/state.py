"""The state of a cluster in its directory, `cluster.json`, by which later commands find its brokers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from statehold.dev.errors import DevError
from statehold.dev.ports import free_ports
from statehold.dev.process import Identity
from statehold.dev.properties import Address

FILE = "cluster.json"


class BrokerState(msgspec.Struct, frozen=True):
    """One broker's addresses and its process, None when it is stopped."""

    address: Address
    process: Identity | None


class ClusterState(msgspec.Struct, frozen=True):
    """A cluster as it was last started."""

    version: str
    cluster_id: str
    brokers: tuple[BrokerState, ...]


def load(directory: Path) -> ClusterState | None:
    """Return the state in the directory, None when it is empty. Raises `DevError` for other contents."""
    file = directory / FILE
    if not file.exists():
        if directory.exists() and any(directory.iterdir()):
            raise DevError(f"{directory} is not empty and holds no cluster: choose another directory")
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=ClusterState)
    except msgspec.DecodeError as error:
        raise DevError(f"{file} cannot be read ({error}): remove {directory} or choose another directory") from error


def save(directory: Path, state: ClusterState) -> None:
    """Write the state atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f".{FILE}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
    fresh.replace(directory / FILE)


def assign_ports(count: int, port: int | None, advertised: dict[int, int], known: ClusterState | None) -> list[Address]:
    """Return the addresses of `count` brokers.

    Clients' ports count up from `port`, or are those of the last start, or free ones. The ports between brokers are new
    at each start, because no client stores them.
    """
    spare = iter(free_ports(3 * count))
    made = []
    for node in range(1, count + 1):
        client = next(spare)
        if port is not None:
            client = port + node - 1
        elif known is not None:
            client = known.brokers[node - 1].address.client
        made.append(Address(node, client, next(spare), next(spare), advertised.get(node, client)))
    return made
