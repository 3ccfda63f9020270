"""Settings of a development broker, composed from the files in deploy/kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from statehold.dev.ports import HOST


@dataclass(frozen=True, slots=True)
class Address:
    """The ports of one broker: for clients, for other brokers, for the controllers' quorum."""

    node: int
    client: int
    internal: int
    controller: int
    advertised: int  # the port that clients connect to: `client`, or that of a proxy in front of it
    host: str = HOST
    name: str = ""  # advertised in place of `host`
    command: tuple[str, ...] = ()  # runs the broker's own command, such as `ip netns exec NAME`

    @property
    def advertised_address(self) -> str:
        """Host and port that clients connect to."""
        return f"{self.name or self.host}:{self.advertised}"


@dataclass(frozen=True, slots=True)
class Host:
    """The place of a broker that does not run on this machine's loopback address: see `Address`."""

    host: str = HOST
    name: str = ""
    command: tuple[str, ...] = ()


def shipped() -> Traversable:
    """Return the folder of the shipped broker settings."""
    return resources.files("statehold") / "deploy" / "kafka"


def parse(text: str) -> dict[str, str]:
    """Read the subset of Java properties in deploy/kafka: `key=value`, comments, blank lines."""
    rows = (line.strip() for line in text.splitlines())
    pairs = (row.partition("=") for row in rows if row and not row.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def compose(me: Address, all_: list[Address], data: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of broker `me`; `overrides` come last."""
    settings: dict[str, str] = {}
    replicas = "replicas-3" if len(all_) >= 3 else "replicas-1"
    for name in ("broker", replicas, "development"):
        settings |= parse((shipped() / f"{name}.properties").read_text(encoding="utf-8"))
    return settings | _own(me, all_, data) | dict(overrides)


def _own(me: Address, all_: list[Address], data: Path) -> dict[str, str]:
    mine = f"CLIENT://{me.host}:{me.client},BROKER://{me.host}:{me.internal}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(me.node),
        "controller.quorum.voters": ",".join(f"{a.node}@{a.host}:{a.controller}" for a in all_),
        "listeners": f"{mine},CONTROLLER://{me.host}:{me.controller}",
        "advertised.listeners": f"CLIENT://{me.advertised_address},BROKER://{me.host}:{me.internal}",
        # Brokers use a listener of their own, so that a proxy in front of one disturbs only its clients.
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
    }


def render(settings: Mapping[str, str]) -> str:
    """Write settings as Java properties."""
    return "".join(f"{key}={value}\n" for key, value in sorted(settings.items()))
