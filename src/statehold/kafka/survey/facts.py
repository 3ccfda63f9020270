"""What a cluster tells of itself, as `core.kafka.survey` asks it: plain values."""

from __future__ import annotations

from typing import NamedTuple


class BrokerAddress(NamedTuple):
    """As the cluster advertises it."""

    id: int
    host: str
    port: int


class Replicas(NamedTuple):
    """One partition of a topic; `leader` is -1 where there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Topic(NamedTuple):
    """A topic, and which operations its describer may do on it, in capitals: READ, WRITE, ..."""

    name: str
    id: str
    partitions: tuple[Replicas, ...]
    allowed: frozenset[str]

    @property
    def replication(self) -> int:
        return min((len(each.replicas) for each in self.partitions), default=0)


class Acl(NamedTuple):
    """One rule of an authorizer; words in capitals as Kafka names them."""

    kind: str
    name: str
    prefixed: bool
    principal: str
    operation: str
    permission: str

    def covers(self, prefix: str) -> bool:
        """Whether it is about names that begin so."""
        return self.name == "*" or (prefix.startswith(self.name) if self.prefixed else self.name.startswith(prefix))


class BrokerClock(NamedTuple):
    """A broker's clock less ours, and how wrong that may be, in seconds."""

    broker: int
    ahead: float
    uncertainty: float
