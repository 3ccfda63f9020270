"""A real Kafka broker for development and tests: `with Cluster() as kafka: ...`."""

from holdfast.dev.cluster import Cluster
from holdfast.dev.errors import BrokerFailed, DevError, InUse, JarsDamaged, JarsUnavailable, JavaMissing

__all__ = ["BrokerFailed", "Cluster", "DevError", "InUse", "JarsDamaged", "JarsUnavailable", "JavaMissing"]
