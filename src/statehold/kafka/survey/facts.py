"""Facts about a cluster, as plain values."""

from __future__ import annotations

from typing import NamedTuple


class BrokerAddress(NamedTuple):
    """A broker as the cluster advertises it."""

    id: int
    host: str
    port: int


class Replicas(NamedTuple):
    """One partition of a topic; `leader` is -1 without a leader."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Topic(NamedTuple):
    """A topic, and the operations that the asking principal may do on it, in capitals: READ, WRITE, ..."""

    name: str
    id: str
    partitions: tuple[Replicas, ...]
    allowed: frozenset[str]

    @property
    def replication(self) -> int:
        return min((len(each.replicas) for each in self.partitions), default=0)


class Acl(NamedTuple):
    """One rule of an authorizer, with Kafka's names in capitals."""

    kind: str
    name: str
    prefixed: bool
    principal: str
    operation: str
    permission: str

    def covers(self, prefix: str) -> bool:
        """Return whether the rule applies to names with this prefix."""
        return self.name == "*" or (prefix.startswith(self.name) if self.prefixed else self.name.startswith(prefix))


class BrokerClock(NamedTuple):
    """The difference between a broker's clock and this machine's, and its uncertainty, in seconds."""

    broker: int
    ahead: float
    uncertainty: float
