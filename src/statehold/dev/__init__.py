"""A real Kafka broker for development and tests: `with Cluster() as kafka: ...`."""

from statehold.dev.cluster import Cluster
from statehold.dev.errors import BrokerFailed, DevError, InUse, JarsDamaged, JarsUnavailable, JavaMissing

__all__ = ["BrokerFailed", "Cluster", "DevError", "InUse", "JarsDamaged", "JarsUnavailable", "JavaMissing"]
